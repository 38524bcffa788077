"""
Producer: enqueue messages in the application's own transaction.

    from outrider import Outbox

    outbox = Outbox(exchange="shop")
    outbox.publish(connection, "order.placed", {"order": 42}, aggregate=("order", 42))

Importing this package imports no framework, no database driver and no broker library. Nothing here connects to a
broker: a message is a row, and the services publish it after the transaction has committed.
"""

from outrider.producer.context import Context, get_tracking_ids, tracking
from outrider.producer.event import AGGREGATE, Event
from outrider.producer.outbox import BatchReceipt, Outbox, OutsideTransactionError, OutsideTransactionWarning, Receipt
from outrider.producer.streams import EventStreams, StoredEvent

__all__ = [
    "AGGREGATE",
    "BatchReceipt",
    "Context",
    "Event",
    "EventStreams",
    "Outbox",
    "OutsideTransactionError",
    "OutsideTransactionWarning",
    "Receipt",
    "StoredEvent",
    "get_tracking_ids",
    "tracking",
]
