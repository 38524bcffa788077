"""
The Django app: models for the outbox's tables, migrations that apply sql/, system checks and signals.

    INSTALLED_APPS = [..., "outrider.producer.django"]
    OUTRIDER = {"EXCHANGE": "shop"}

    from outrider.producer.django import publish

    with transaction.atomic():
        order.save()
        publish("order.placed", {"order": order.id}, aggregate=("order", order.id))

See outrider.producer.django.conf for the settings. Celery tasks are captured by outrider.producer.celery with
`TaskOutbox(django=True)`; they send outbox_message_created, too.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outrider.producer.django.django_outbox import DjangoOutbox, publish, publish_many

__all__ = ["DjangoOutbox", "publish", "publish_many"]


def __getattr__(name: str) -> Any:
    """Django imports this package before its settings are ready, so the names are loaded when they are first used."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.django_outbox"), name)
