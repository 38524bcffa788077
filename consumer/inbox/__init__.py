"""
The inbox: effects exactly once, in the consumer's own transaction.

    inbox = Inbox()

    with inbox.once(connection, "billing", event_id) as fresh:  # `async with` for an asynchronous handle
        if fresh:
            ...  # the effects, through the same connection

The event is marked as processed in the transaction that holds its effects: both are committed or neither is. Delivery
stays at least once; a message that comes again finds the mark and is not fresh. Handles are those of the producer.

`outrider.consumer.inbox.transactions` opens transactions for a worker, `outrider.consumer.inbox.celery` does all of it for Celery tasks.
What a handler does elsewhere (a mail, another database, a call to a service) is outside of this promise.
"""

from __future__ import annotations

from outrider.consumer.inbox.once import Inbox
from outrider.consumer.inbox.transactions import open_transaction
from outrider.producer.outbox import OutsideTransactionError

__all__ = ["Inbox", "OutsideTransactionError", "open_transaction"]
