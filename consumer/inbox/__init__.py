"""
The inbox: apply the effects of an event once, in the consumer's own transaction.

    inbox = Inbox()

    with inbox.once(connection, "billing", event_id) as fresh:  # `async with` for an asynchronous handle
        if fresh:
            ...  # the effects, through the same connection

The event is marked as processed in the transaction of its effects, so both are committed or neither is. Delivery stays
at least once; for a message that is delivered again `fresh` is False. It accepts the same handles as the producer.

`outrider.consumer.inbox.transactions` opens transactions for a worker; `outrider.consumer.inbox.celery` does the same
for Celery tasks. Effects outside the transaction (a mail, another database, a call to a service) are not covered.
"""

from __future__ import annotations

from outrider.consumer.inbox.once import Inbox
from outrider.consumer.inbox.transactions import open_transaction
from outrider.producer.outbox import OutsideTransactionError

__all__ = ["Inbox", "OutsideTransactionError", "open_transaction"]
