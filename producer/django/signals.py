"""
Signals. A receiver that raises is logged and changes nothing.

outbox_message_created        from outrider.producer.django.outbox, after the row was written and inside the transaction, which
                              may still be rolled back. sender: the DjangoOutbox; kwargs: event_id (UUID), event_type
                              (str), new (False: a message with its dedup_key was pending; None: not known), using
                              (the database's alias)

The others tell what the services did, wherever they run: one process watches the tables and sends these. It is a
service that runs inside Django (`manage.py outbox_relay`, `outbox_retry_scheduler`), or `manage.py outbox_signals`;
sender: the Watcher. Nothing is sent for what happened while none of them ran.

outbox_message_sent           kwargs: event_id, event_type, attempts (int), delivered_at (datetime), using. Needs the
                              services' setting `archive`: otherwise nothing is left of a message that was delivered
outbox_message_failed         kwargs: event_id, event_type, attempts, failed_at, error (str), using. A failure that was
                              overcome within seconds may go untold
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
    """Tell every receiver; log those that fail, without what they were given."""
    for receiver, answer in signal.send_robust(sender, **kwargs):
        if isinstance(answer, Exception):
            logging.getLogger(__name__).error("%r raised %s", receiver, type(answer).__name__, exc_info=answer)
