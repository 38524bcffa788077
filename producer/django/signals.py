"""
Signals. A receiver that raises is logged and changes nothing: the message is enqueued all the same.

outbox_message_created    sent by producer.django.outbox after the row was written, inside the transaction, which may
                          still be rolled back. sender: the DjangoOutbox; kwargs: event_id (UUID), event_type (str),
                          new (False: a message with its dedup_key was pending), using (the database's alias)
"""

from __future__ import annotations

import logging
from typing import Any

from django.dispatch import Signal

outbox_message_created = Signal()


def send_robustly(signal: Signal, sender: Any, **kwargs: Any) -> None:
    """Tell every receiver; log those that fail, without what they were given."""
    for receiver, answer in signal.send_robust(sender, **kwargs):
        if isinstance(answer, Exception):
            logging.getLogger(__name__).error("%r raised %s", receiver, type(answer).__name__, exc_info=answer)
