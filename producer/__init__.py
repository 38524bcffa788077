"""
Producer: what applications import to enqueue messages, in their own transaction.

    from producer import Outbox

    outbox = Outbox(exchange="shop")
    outbox.publish(connection, "order.placed", {"order": 42}, aggregate=("order", 42))

Importing this package imports no framework, no database driver and no broker library. Nothing here ever connects to a
broker: a message is a row, and the services deliver it once the transaction has committed.
"""

from producer.event import AGGREGATE, Event
from producer.events import BatchReceipt, Outbox, OutsideTransactionError, OutsideTransactionWarning, Receipt

__all__ = [
    "AGGREGATE",
    "BatchReceipt",
    "Event",
    "Outbox",
    "OutsideTransactionError",
    "OutsideTransactionWarning",
    "Receipt",
]
