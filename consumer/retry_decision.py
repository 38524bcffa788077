"""
Fate: what becomes of a message once its handler has returned or raised. Pure decisions, and the message that is sent
on.

    done       acknowledged
    duplicate  acknowledged without having been handled: the inbox knows it
    retry      sent to the delay of its attempt
    bury       sent to the dead letters: it was rejected, does not decode, has expired or has used up its delays

A retry that would come back after the message's expiry is not made: the message has expired.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from aio_pika import DeliveryMode, Message
from aiormq.abc import DeliveredMessage

from outrider.consumer.delivery import (
    ATTEMPT,
    BROKER_HEADERS,
    DIED_AT,
    ERROR,
    EXCHANGE,
    EXPIRES_AT,
    OWN_HEADERS,
    REASON,
    ROUTING_KEY,
    Delivery,
)
from outrider.consumer.durations import Duration
from outrider.consumer.errors import Expired, Reject, Undecodable
from outrider.failures import one_line

BurialReason = Literal["max attempts", "rejected", "undecodable", "expired"]


@dataclass(frozen=True, slots=True)
class Done:
    duplicate: bool = False


@dataclass(frozen=True, slots=True)
class Retry:
    delay: Duration
    error: str


@dataclass(frozen=True, slots=True)
class Bury:
    reason: BurialReason
    error: str


Fate = Done | Retry | Bury
DONE = Done()
DUPLICATE = Done(duplicate=True)


def is_expired(delivery: Delivery, now: float) -> bool:
    return delivery.expires_at is not None and now >= delivery.expires_at


def after_failure(error: BaseException, delivery: Delivery, delays: Sequence[Duration], now: float) -> Fate:
    """What to do with a message whose handling raised."""
    if isinstance(error, Reject):
        return Bury("rejected", one_line(str(error)) or "rejected")
    if isinstance(error, Undecodable):
        return Bury("undecodable", one_line(str(error)))
    if isinstance(error, Expired):
        return Bury("expired", one_line(str(error)))
    text = one_line(f"{type(error).__name__}: {error}")
    if delivery.attempt > len(delays):
        return Bury("max attempts", text)
    delay = delays[delivery.attempt - 1]
    if is_expired(delivery, now + delay.seconds):
        return Bury("expired", text)
    return Retry(delay, text)


def message_for(fate: Retry | Bury, received: DeliveredMessage, delivery: Delivery) -> Message:
    """The message that is sent on: the one received, with a note of its past."""
    headers = passed_on(delivery.headers)
    headers[ATTEMPT] = delivery.attempt
    headers[EXCHANGE] = delivery.exchange
    headers[ROUTING_KEY] = delivery.routing_key
    headers[ERROR] = fate.error
    if delivery.expires_at is not None:
        headers[EXPIRES_AT] = int(delivery.expires_at * 1000)
    if isinstance(fate, Bury):
        headers[REASON] = fate.reason
        headers[DIED_AT] = datetime.now(UTC)
    return copy_of(received, headers)


def replayed(received: DeliveredMessage) -> Message:
    """A dead letter as it goes back to its queue: a first attempt, with the route of the original."""
    properties = received.header.properties
    kept = {name: value for name, value in (properties.headers or {}).items() if name in (EXCHANGE, ROUTING_KEY)}
    return copy_of(received, passed_on(properties.headers or {}) | kept)


def passed_on(headers: Any) -> dict[str, Any]:
    """The sender's own headers."""
    return {name: value for name, value in headers.items() if name not in OWN_HEADERS and name not in BROKER_HEADERS}


def copy_of(received: DeliveredMessage, headers: dict[str, Any]) -> Message:
    # Without `expiration`, which would cut a delay short, and without `user_id`, which only its owner may send.
    properties = received.header.properties
    return Message(
        received.body,
        headers=headers,
        content_type=properties.content_type,
        content_encoding=properties.content_encoding,
        delivery_mode=DeliveryMode.PERSISTENT,
        priority=properties.priority,
        correlation_id=properties.correlation_id,
        reply_to=properties.reply_to,
        message_id=properties.message_id,
        timestamp=properties.timestamp,
        type=properties.message_type,
        app_id=properties.app_id,
    )
