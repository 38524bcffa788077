"""
Delivery: one received message as a handler sees it, and the headers in which workers record its earlier attempts.

Built from the message that aiormq received, without reading the body. A message that returns from a delay queue has the
same routing key and exchange as at first: both are kept in headers, because the return path uses others. A Delivery
cannot acknowledge its message: the worker does that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from aiormq.abc import DeliveredMessage

from outrider.producer.context import TRACKING_HEADER

ATTEMPT: Final = "x-outrider-attempt"
"""Number of earlier attempts."""
EXCHANGE: Final = "x-outrider-exchange"
ROUTING_KEY: Final = "x-outrider-routing-key"
EXPIRES_AT: Final = "x-outrider-expires-at"
"""Unix milliseconds at which the message expires; kept across delays."""
REASON: Final = "x-outrider-reason"
ERROR: Final = "x-outrider-error"
DIED_AT: Final = "x-outrider-died-at"
OWN_HEADERS: Final = frozenset({ATTEMPT, EXCHANGE, ROUTING_KEY, EXPIRES_AT, REASON, ERROR, DIED_AT})

# Headers that RabbitMQ adds on the way. In a copy they would look like the history of the new message.
BROKER_HEADERS: Final = frozenset(
    {
        *("x-death", "x-delivery-count", "x-acquired-count"),
        *(f"x-{which}-death-{what}" for which in ("first", "last") for what in ("exchange", "queue", "reason")),
    }
)
ARRIVED_AT: Final = "timestamp_in_ms"
"""Arrival time at the broker; present only if the broker is configured to add it (message_interceptors)."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """
    A received message.

    queue         the queue from which it was received
    event_id      the AMQP message_id: the outbox's event id; '' if the message has none. Also called message_id
    event_type    the AMQP type
    aggregate     (type, id) of the event's aggregate, such as ('order', '42'), or None
    tracking_ids  ids of the chain of messages that led to this one; this one is last
    attempt       1 for the first
    expires_at    Unix seconds, or None. RabbitMQ does not report how long a message has waited: unless it is configured
                  to add arrival times, the time to live counts from the first delivery
    """

    body: bytes = field(repr=False)
    content_type: str
    content_encoding: str
    headers: Mapping[str, Any] = field(repr=False)
    exchange: str
    routing_key: str
    queue: str
    event_id: str
    event_type: str
    aggregate: tuple[str, str] | None
    tracking_ids: tuple[str, ...]
    attempt: int
    redelivered: bool
    timestamp: datetime | None
    expires_at: float | None

    @property
    def replay_id(self) -> str | None:
        """The id of the replay that sent the event again; None: it is no replay."""
        found = self.headers.get("replay_id")
        return found if isinstance(found, str) and found else None

    @property
    def message_id(self) -> str:
        return self.event_id

    def describe(self) -> dict[str, object]:
        """Fields for logs. Body and headers are never logged."""
        return {"event_id": self.event_id, "event_type": self.event_type, "attempt": self.attempt}


def read_delivery(received: DeliveredMessage, now: float, queue: str) -> Delivery:
    """
    Build a Delivery from a message received from `queue` at `now` (Unix seconds). Never raises: invalid headers are
    ignored.
    """
    properties = received.header.properties
    headers: dict[str, Any] = properties.headers or {}
    event_id = properties.message_id or ""
    attempts = headers.get(ATTEMPT)
    kind, identity = headers.get("aggregate_type"), headers.get("aggregate_id")
    chain = headers.get(TRACKING_HEADER)
    return Delivery(
        body=received.body,
        content_type=properties.content_type or "",
        content_encoding=properties.content_encoding or "",
        headers=headers,
        exchange=_text(headers.get(EXCHANGE), received.exchange),
        routing_key=_text(headers.get(ROUTING_KEY), received.routing_key),
        queue=queue,
        event_id=event_id,
        event_type=properties.message_type or "",
        aggregate=None if kind is None or identity is None else (str(kind), str(identity)),
        tracking_ids=tuple(map(str, chain)) if isinstance(chain, list) else ((event_id,) if event_id else ()),
        attempt=attempts + 1 if isinstance(attempts, int) and attempts > 0 else 1,
        redelivered=bool(received.redelivered),
        timestamp=properties.timestamp,
        expires_at=_expires_at(headers, properties.expiration, now),
    )


def route_before_death(headers: Mapping[str, Any], queue: str) -> tuple[str, str] | None:
    """
    Exchange and routing key of a message that the broker itself dead-lettered from this queue, as it was received:
    dead-lettering replaced both. None if the broker did not.
    """
    deaths = headers.get("x-death")
    for death in reversed(deaths if isinstance(deaths, list) else []):  # the oldest is last
        if isinstance(death, dict) and death.get("queue") == queue:
            keys = death.get("routing-keys")
            if isinstance(keys, list) and keys and isinstance(keys[0], str):
                return str(death.get("exchange", "")), keys[0]
    return None


def _expires_at(headers: Mapping[str, Any], expiration: str | None, now: float) -> float | None:
    recorded = headers.get(EXPIRES_AT)
    if isinstance(recorded, int):
        return recorded / 1000
    if not expiration or not expiration.isdigit():
        return None
    arrived = headers.get(ARRIVED_AT)
    return (arrived / 1000 if isinstance(arrived, int) else now) + int(expiration) / 1000


def _text(recorded: object, actual: str | None) -> str:
    return recorded if isinstance(recorded, str) else actual or ""
