"""
The Django app: models for the outbox's tables, migrations that apply sql/, system checks and a signal.

    INSTALLED_APPS = [..., "outrider.producer.django"]
    OUTRIDER = {"EXCHANGE": "shop"}

    from outrider.producer.django.django_outbox import publish

    with transaction.atomic():
        order.save()
        publish("order.placed", {"order": order.id}, aggregate=("order", order.id))

See outrider.producer.django.conf for the settings. Tasks of Celery are captured by outrider.producer.celery with
`TaskOutbox(django="default")`; they have Celery's own signals.
"""
