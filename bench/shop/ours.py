"""
The shop's Celery application with this project's outbox.
"""

from __future__ import annotations

from bench.shop.task import configure
from outrider.producer.celery import OutboxCelery, TaskOutbox

app = OutboxCelery("shop", outbox=TaskOutbox(django="default"))
send_invoice = configure(app)
