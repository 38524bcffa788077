"""
The shop's Celery application with django-celery-outbox. Runs in the peer's virtual environment.
"""

from __future__ import annotations

from django_celery_outbox import OutboxCelery  # type: ignore[import-not-found]

from bench.shop.task import configure

app = OutboxCelery("shop")
send_invoice = configure(app)
