"""
DjangoOutbox: enqueue events in Django's transactions, with the settings in OUTRIDER.

    publish("order.placed", {...}, aggregate=("order", 42))     # OUTRIDER["DATABASE"]
    DjangoOutbox(using="other").publish(...)                      # another alias

The arguments are those of outrider.Outbox, without the handle. When an `atomic` block is rolled back, also one inside
another, its messages are rolled back too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from outrider.producer.context import Context
from outrider.producer.django.conf import get_settings
from outrider.producer.django.signals import outbox_message_created, send_robustly
from outrider.producer.event import Event
from outrider.producer.outbox import BatchReceipt, Outbox, Receipt


class DjangoOutbox:
    """The outbox of a database alias; None is OUTRIDER["DATABASE"]."""

    def __init__(self, using: str | None = None) -> None:
        configured = get_settings()
        self.using = using or configured.database
        self.outbox = Outbox(
            configured.exchange,
            schema=configured.schema,
            context=Context(**configured.context),
            outside_transaction=configured.outside_transaction,  # type: ignore[arg-type]  # checked by Outbox
        )

    def publish(self, event_type: str, payload: Any, **options: Any) -> Receipt:
        """Enqueue one event: see outrider.Outbox.publish."""
        receipt = self.outbox.publish(self.using, event_type, payload, **options)
        self._send_signal(receipt.event_id, event_type, receipt.new)
        return receipt

    def publish_many(self, messages: Iterable[Event | Mapping[str, Any]]) -> BatchReceipt:
        """Enqueue many: see outrider.Outbox.publish_many. In signals of messages with a dedup_key, `new` is None."""
        events = [message if isinstance(message, Event) else Event(**message) for message in messages]
        receipt = self.outbox.publish_many(self.using, events)
        for event_id, event in zip(receipt.event_ids, events, strict=True):
            self._send_signal(event_id, event.event_type, None if event.dedup_key else True)
        return receipt

    def _send_signal(self, event_id: Any, event_type: str, new: bool | None) -> None:
        send_robustly(
            outbox_message_created,
            self,
            event_id=event_id,
            event_type=event_type,
            task_id=None,
            task_name=None,
            new=new,
            using=self.using,
        )


def publish(event_type: str, payload: Any, **options: Any) -> Receipt:
    """Enqueue one event in OUTRIDER["DATABASE"]."""
    return DjangoOutbox().publish(event_type, payload, **options)


def publish_many(messages: Iterable[Event | Mapping[str, Any]]) -> BatchReceipt:
    """Enqueue many events in OUTRIDER["DATABASE"]."""
    return DjangoOutbox().publish_many(messages)
