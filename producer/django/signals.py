"""
Signals. An exception of a receiver is logged and has no other effect.

outbox_message_created        sent by the process that enqueues, after the row was written and inside the transaction,
                              which may still be rolled back. sender: the DjangoOutbox, or the TaskOutbox for a Celery
                              task; kwargs: event_id (UUID), event_type (str), task_id and task_name (str; None for an
                              event), new (False: a message with the same dedup_key was pending; None: not known), using
                              (the alias)

The others are sent for what the services do. sender: the SignalWatcher or DeliverySignals; every one has using.

outbox_message_sent           kwargs: event_id, event_type, task_id, task_name, attempts (int), delivered_at (datetime)
outbox_message_failed         kwargs: event_id, event_type, task_id, task_name, attempts, failed_at, error (str). May be
                              missing for a message that is delivered within seconds of the failure
outbox_message_dead_lettered  batched. kwargs: messages (a list of dicts: event_id, event_type, task_id, task_name,
                              attempts, died_at, error, reason)

In which process, and when:

- One process reads the tables, and sends these three signals within LAG_SECONDS plus INTERVAL_SECONDS. It is a service
  inside Django (`manage.py outbox_relay`, `outbox_retry_scheduler`) or `manage.py outbox_signals`; the others stand by.
  For outbox_message_sent the services need their setting `archive`: otherwise a delivered row is deleted.
- A service inside Django that does not archive sends outbox_message_sent itself, as soon as the broker has confirmed.

No signals are sent for what happens while no such process runs.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from django.dispatch import Signal

from outrider.producer.row import Row

LAG_SECONDS = 2.0
INTERVAL_SECONDS = 1.0

outbox_message_created = Signal()
outbox_message_sent = Signal()
outbox_message_failed = Signal()
outbox_message_dead_lettered = Signal()


def send_robustly(signal: Signal, sender: Any, **kwargs: Any) -> None:
    """Call every receiver, and log their exceptions, without the arguments."""
    for receiver, answer in signal.send_robust(sender, **kwargs):
        if isinstance(answer, Exception):
            logging.getLogger(__name__).error("%r raised %s", receiver, type(answer).__name__, exc_info=answer)


def task_of(headers: str) -> dict[str, Any]:
    """task_id and task_name, from the headers of a message (Celery's protocol 2); None for an event."""
    found: Any = json.loads(headers)
    is_task = "task" in found and "id" in found
    return {"task_id": found["id"] if is_task else None, "task_name": found["task"] if is_task else None}


def send_created_for_tasks(sender: Any, rows: Sequence[Row], written: int, *, using: str) -> None:
    """After tasks were enqueued. Does nothing where there is no receiver."""
    if not outbox_message_created.has_listeners(sender):
        return
    for row in rows:
        new = True if row["dedup_key"] is None else bool(written) if len(rows) == 1 else None
        send_robustly(
            outbox_message_created,
            sender,
            event_id=UUID(row["event_id"]),
            event_type=row["event_type"],
            **task_of(row["headers"]),
            new=new,
            using=using,
        )
