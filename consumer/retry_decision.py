"""
Decide what to do with a message whose handling failed, and build the properties of the copy that is published.

    retry  publish a copy to the delay queue of this attempt, then acknowledge
    bury   publish a copy to the dead-letter queue, then acknowledge: the message was rejected, does not decode, has
           expired, or has used up its retry delays

A message that would expire during its retry delay is buried as expired. Pure functions: no connection, no clock except
the burial time.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from aio_pika import DeliveryMode
from aiormq.abc import DeliveredMessage
from pamqp.commands import Basic

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
    route_before_death,
)
from outrider.consumer.errors import Expired, Reject, Undecodable
from outrider.failures import describe_error, one_line
from outrider.settings.durations import Duration
from outrider.storage.decision import DeadLetterReason


@dataclass(frozen=True, slots=True)
class RetryAfterDelay:
    delay: Duration
    error: str


@dataclass(frozen=True, slots=True)
class Bury:
    reason: DeadLetterReason
    error: str


def is_expired(delivery: Delivery, now: float) -> bool:
    return delivery.expires_at is not None and now >= delivery.expires_at


def decide_after_failure(
    error: BaseException, delivery: Delivery, delays: Sequence[Duration], now: float
) -> RetryAfterDelay | Bury:
    """Choose retry or bury for a message whose handling raised this error."""
    if isinstance(error, Reject):
        return Bury("rejected", one_line(str(error)) or "rejected")
    if isinstance(error, Undecodable):
        return Bury("undecodable", one_line(str(error)))
    if isinstance(error, Expired):
        return Bury("expired", one_line(str(error)))
    text = describe_error(error)
    if delivery.attempt > len(delays):
        return Bury("max attempts", text)
    delay = delays[delivery.attempt - 1]
    if is_expired(delivery, now + delay.seconds):
        return Bury("expired", text)
    return RetryAfterDelay(delay, text)


def forwarded_properties(
    decision: RetryAfterDelay | Bury, received: DeliveredMessage, delivery: Delivery
) -> Basic.Properties:
    """The properties of the copy for the delay or dead-letter queue: its headers record the attempt and its error."""
    headers = _sender_headers(delivery.headers)
    headers[ATTEMPT] = delivery.attempt
    headers[EXCHANGE] = delivery.exchange
    headers[ROUTING_KEY] = delivery.routing_key
    headers[ERROR] = decision.error
    if delivery.expires_at is not None:
        headers[EXPIRES_AT] = int(delivery.expires_at * 1000)
    if isinstance(decision, Bury):
        headers[REASON] = decision.reason
        headers[DIED_AT] = datetime.now(UTC)
    return _copy(received, headers)


def replayed_properties(received: DeliveredMessage, queue: str) -> Basic.Properties:
    """The properties of a dead letter's copy for its queue: a first attempt, with its exchange and routing key."""
    headers: dict[str, Any] = received.header.properties.headers or {}
    route = route_before_death(headers, queue)
    kept: dict[str, Any] = {} if route is None else {EXCHANGE: route[0], ROUTING_KEY: route[1]}
    kept |= {name: value for name, value in headers.items() if name in (EXCHANGE, ROUTING_KEY)}
    return _copy(received, _sender_headers(headers) | kept)


def _sender_headers(headers: Any) -> dict[str, Any]:
    """The headers that the sender set, without ours and the broker's."""
    return {name: value for name, value in headers.items() if name not in OWN_HEADERS and name not in BROKER_HEADERS}


def _copy(received: DeliveredMessage, headers: dict[str, Any]) -> Basic.Properties:
    properties = copy(received.header.properties)
    properties.headers = headers
    properties.delivery_mode = DeliveryMode.PERSISTENT
    properties.expiration = None  # would end a delay early
    properties.user_id = None  # only that user may publish it
    return properties
