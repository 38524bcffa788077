"""
Celery through the outbox: a task call writes a row in the caller's transaction.

    from outrider.producer.celery import OutboxCelery, TaskOutbox

    app = OutboxCelery("shop", broker="amqp://...", outbox=TaskOutbox(django=True))

A drop-in for `celery.Celery`. Celery itself handles routes, eta, expires, links, canvas, stamps, priorities,
serializers and compression; only the message that it would publish becomes a row. Workers need nothing: what the
services publish is, byte for byte, what Celery would have published.

Enqueuing opens no broker connection. It makes no request to a result backend either, except for chords.
"""

from outrider.producer.celery.app import OutboxCelery, capture_tasks
from outrider.producer.celery.task_outbox import TaskOutbox

__all__ = ["OutboxCelery", "TaskOutbox", "capture_tasks"]
