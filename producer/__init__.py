"""
Producer: enqueue messages in the application's own transaction.

    from outrider import Outbox

    outbox = Outbox(exchange="shop")
    outbox.publish(connection, "order.placed", {"order": 42}, aggregate=("order", 42))

Importing this package imports no framework, no database driver and no broker library. Nothing here connects to a
broker: a message is a row, and the services publish it after the transaction has committed.
"""

from outrider.producer.aggregate import Aggregate
from outrider.producer.context import Context, get_tracking_ids, tracking
from outrider.producer.encryption import SubjectEncryption
from outrider.producer.event import AGGREGATE, Event
from outrider.producer.event_types import EventTypes
from outrider.producer.outbox import BatchReceipt, Outbox, OutsideTransactionError, OutsideTransactionWarning, Receipt
from outrider.producer.payload_codec import Forgotten, PayloadCodec
from outrider.producer.position import Position
from outrider.producer.repository import Repository
from outrider.producer.snapshots import Snapshot
from outrider.producer.stored_event import EventPage, StoredEvent
from outrider.producer.streams import EventStreams

__all__ = [
    "AGGREGATE",
    "Aggregate",
    "BatchReceipt",
    "Context",
    "Event",
    "EventPage",
    "EventStreams",
    "EventTypes",
    "Forgotten",
    "Outbox",
    "OutsideTransactionError",
    "OutsideTransactionWarning",
    "PayloadCodec",
    "Position",
    "Receipt",
    "Repository",
    "Snapshot",
    "StoredEvent",
    "SubjectEncryption",
    "get_tracking_ids",
    "tracking",
]
