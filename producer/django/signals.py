"""
Signals. An exception of a receiver is logged and has no other effect.

outbox_message_created        sent by DjangoOutbox after the row was written, inside the transaction, which may still be
                              rolled back. sender: the DjangoOutbox; kwargs: event_id (UUID), event_type (str), new
                              (False: a message with the same dedup_key was pending; None: not known), using (the alias)

The others are sent for what the services do, wherever these run: one process reads the tables and sends the signals.
It is a service inside Django (`manage.py outbox_relay`, `outbox_retry_scheduler`), or `manage.py outbox_signals`.
sender: the SignalWatcher. No signals are sent for what happens while none of these processes runs.

outbox_message_sent           kwargs: event_id, event_type, attempts (int), delivered_at (datetime), using. Needs the
                              services' setting `archive`: without it, the row of a delivered message is deleted
outbox_message_failed         kwargs: event_id, event_type, attempts, failed_at, error (str), using. May be missing for
                              a message that is delivered within seconds of the failure
outbox_message_dead_lettered  batched. kwargs: messages (a list of dicts: event_id, event_type, attempts, died_at,
                              error, reason), using
"""

from __future__ import annotations

import logging
from typing import Any

from django.dispatch import Signal

outbox_message_created = Signal()
outbox_message_sent = Signal()
outbox_message_failed = Signal()
outbox_message_dead_lettered = Signal()


def send_robustly(signal: Signal, sender: Any, **kwargs: Any) -> None:
    """Call every receiver, and log their exceptions, without the arguments."""
    for receiver, answer in signal.send_robust(sender, **kwargs):
        if isinstance(answer, Exception):
            logging.getLogger(__name__).error("%r raised %s", receiver, type(answer).__name__, exc_info=answer)
