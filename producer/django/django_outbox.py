"""
DjangoOutbox: enqueue events in Django's transactions, as the settings say.

    publish("order.placed", {...}, aggregate=("order", 42))     # the database of the settings
    DjangoOutbox(using="other").publish(...)                      # another one

The arguments are those of producer.Outbox, without the handle. Savepoints (`atomic` blocks inside others) take their
messages with them when they are rolled back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from outrider.producer.django.conf import get_settings
from outrider.producer.django.signals import outbox_message_created, send_robustly
from outrider.producer.event import Event
from outrider.producer.outbox import BatchReceipt, Outbox, Receipt


class DjangoOutbox:
    """The outbox of a database alias; None is the one of the settings."""

    def __init__(self, using: str | None = None) -> None:
        configured = get_settings()
        self.using = using or configured.database
        self.outbox = Outbox(
            configured.exchange,
            schema=configured.schema,
            outside_transaction=configured.outside_transaction,  # type: ignore[arg-type]  # checked by Outbox
        )

    def publish(self, event_type: str, payload: Any, **options: Any) -> Receipt:
        """Enqueue one event: see producer.Outbox.publish."""
        receipt = self.outbox.publish(self.using, event_type, payload, **options)
        self._created(receipt.event_id, event_type, receipt.new)
        return receipt

    def publish_many(self, messages: Iterable[Event | Mapping[str, Any]]) -> BatchReceipt:
        """Enqueue many: see producer.Outbox.publish_many. The signal does not know which of them were new."""
        events = [message if isinstance(message, Event) else Event(**message) for message in messages]
        receipt = self.outbox.publish_many(self.using, events)
        for event_id, event in zip(receipt.event_ids, events, strict=True):
            self._created(event_id, event.event_type, None if event.dedup_key else True)
        return receipt

    def _created(self, event_id: Any, event_type: str, new: bool | None) -> None:
        send_robustly(outbox_message_created, self, event_id=event_id, event_type=event_type, new=new, using=self.using)


def publish(event_type: str, payload: Any, **options: Any) -> Receipt:
    """Enqueue one event in the database of the settings."""
    return DjangoOutbox().publish(event_type, payload, **options)


def publish_many(messages: Iterable[Event | Mapping[str, Any]]) -> BatchReceipt:
    """Enqueue many events in the database of the settings."""
    return DjangoOutbox().publish_many(messages)
