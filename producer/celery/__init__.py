"""
Celery through the outbox: tasks are rows of the caller's transaction, and Celery does everything else.

    from outrider.producer.celery import OutboxCelery, TaskOutbox

    app = OutboxCelery("shop", broker="amqp://...", outbox=TaskOutbox(django="default"))

A drop-in for `celery.Celery`: routes, eta, expires, links, canvas, stamps, priorities, serializers and compression are
Celery's own work, done as always; only the last step, the message on its way to the broker, becomes a row instead.
Workers need nothing: what the services send is, byte for byte, what Celery would have sent.

No broker connection is opened at enqueue. A result backend is asked nothing either, except by chords, which need it.
"""

from outrider.producer.celery.app import OutboxCelery, arm
from outrider.producer.celery.task_outbox import TaskOutbox

__all__ = ["OutboxCelery", "TaskOutbox", "arm"]
