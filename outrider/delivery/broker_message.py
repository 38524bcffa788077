"""
Convert a row to a broker message: exchange, routing key, headers and properties.

Pure: no connection, no clock (`now` is the server time). Two things depend on the time of sending: what is left of the
time to live, and the delay that Celery's native delayed delivery encodes in the routing key. A row that cannot be
converted raises UndecodableMessage, whose text names the column or property and does not quote its value.

Names are kombu's and AMQP's. Properties that AMQP does not know (Celery passes its stamps there) are kept: kombu's
other transports carry them, and py-amqp leaves them out, as without an outbox.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from kombu.utils import json as kombu_json

from outrider.errors import UndecodableMessage
from outrider.storage.message import Message
from outrider.storage.server_time import from_datetime, to_unix_seconds

PERSISTENT = 2
LOG_CONTEXT_HEADER = "log_context"
# The longest time to live that RabbitMQ accepts, about 50 days. A message with a longer one is sent without.
MAX_EXPIRATION_MILLISECONDS = 2**32 - 1
# The delay exchanges have 28 bits, about 8 years.
MAX_DELAY_SECONDS = 2**28 - 1

_PROPERTY_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "content_type": str,
    "content_encoding": str,
    "correlation_id": str,
    "reply_to": str,
    "message_id": str,
    "type": str,
    "user_id": str,
    "app_id": str,
    "cluster_id": str,
    "delivery_mode": int,
    "priority": int,
    "timestamp": int,
    "expiration": (int, float),
}
_decode_json = json.JSONDecoder().raw_decode
_DELAY_EXCHANGE = re.compile(r"^(?P<prefix>.+_)?celery_delayed_\d+$")
_DELAY_BITS = re.compile(r"^(?:[01]\.){28}")


class BrokerMessage(NamedTuple):
    """A message as the broker gets it; the body is the row's payload."""

    exchange: str
    routing_key: str
    headers: dict[str, Any]
    properties: dict[str, Any]
    """AMQP basic properties without the headers; `expiration` is AMQP's string of milliseconds."""
    mandatory: bool = True
    """False: the message may vanish where no queue takes it. The row says so, with `"mandatory": false` among its
    properties: events of Celery and messages to its fanout exchanges."""


def to_broker_message(message: Message, now: int) -> BrokerMessage:
    """The message to send at `now` (server time). Raises UndecodableMessage."""
    headers = _parse_object(message.headers, "headers")
    properties: dict[str, Any] = {
        "content_type": message.content_type,
        "content_encoding": message.content_encoding,
        "delivery_mode": PERSISTENT,
        "message_id": message.event_id,
        "type": message.event_type,
        "timestamp": to_unix_seconds(message.created_at),
    }
    given = _parse_object(message.properties, "properties")
    mandatory = given.pop("mandatory", True)
    if not isinstance(mandatory, bool):
        raise UndecodableMessage(f"property mandatory is a {type(mandatory).__name__}")
    if given:
        _set_given(given, properties)
    if message.expires_at is not None or "expiration" in properties:
        _set_expiration(properties, message, now)
    if message.context is not None:
        _add_log_context(headers, message.context)
    exchange, routing_key = message.exchange, message.routing_key
    if "celery_delayed_" in exchange:
        exchange, routing_key = _delayed_route(exchange, routing_key, headers.get("eta"), now)
    return BrokerMessage(exchange, routing_key, headers, properties, mandatory)


def _parse_object(text: str, column: str) -> dict[str, Any]:
    if text == "{}":
        return {}
    value = parse_json(text, column)
    if not isinstance(value, dict):
        raise UndecodableMessage(f"{column} is not a JSON object")
    return value


def parse_json(text: str, column: str) -> Any:
    """The JSON value of a column, with the types that kombu's encoder marks (UUIDs, datetimes, decimals, bytes)."""
    try:
        if "__type__" in text:
            return kombu_json.loads(text)
        # The server has checked that it is JSON: an object needs no search for white space around it.
        return _decode_json(text)[0] if text[:1] == "{" else json.loads(text)
    except Exception as error:
        # kombu's decoders raise many types for a malformed marker. The row is the cause in any case.
        raise UndecodableMessage(f"{column} does not decode: {type(error).__name__}") from error


def _set_given(given: dict[str, Any], properties: dict[str, Any]) -> None:
    """Set the row's own properties over the defaults; null means not given."""
    for name, value in given.items():
        if value is None:
            continue
        expected = _PROPERTY_TYPES.get(name)
        if expected is not None and (not isinstance(value, expected) or isinstance(value, bool)):
            raise UndecodableMessage(f"property {name} is a {type(value).__name__}")
        if expected is str and not is_text(value):
            raise UndecodableMessage(f"property {name} is not text that UTF-8 can encode")
        properties[name] = value


def _add_log_context(headers: dict[str, Any], context: str) -> None:
    """Consumers add it to their logs. A malformed context is left out: the message is sent without it."""
    try:
        log_context = json.loads(context)
    except (ValueError, RecursionError):
        return
    if isinstance(log_context, dict):
        headers.setdefault(LOG_CONTEXT_HEADER, log_context)


def is_text(value: str) -> bool:
    """False for a lone surrogate, which JSON allows: py-amqp would send it and fail to read a returned message."""
    try:
        return value.isascii() or bool(value.encode())
    except UnicodeEncodeError:
        return False


def _set_expiration(properties: dict[str, Any], message: Message, now: int) -> None:
    """Set what is left of the time to live after the time in the outbox."""
    left = math.inf
    if (seconds := properties.pop("expiration", None)) is not None:
        if math.isnan(seconds):
            raise UndecodableMessage("property expiration is not a number")
        left = seconds * 1000 - (now - message.created_at) / 1000
    if message.expires_at is not None:
        left = min(left, (message.expires_at - now) / 1000)
    if left <= MAX_EXPIRATION_MILLISECONDS:
        properties["expiration"] = str(int(max(0, left)))


def _delayed_route(exchange: str, routing_key: str, eta: object, now: int) -> tuple[str, str]:
    """
    The route of a message whose delay Celery encoded in the routing key (native delayed delivery).

    The delay is what is left until the eta. When nothing is left, Celery would use the original exchange, which is not
    in the row. The delivery exchange, where every delay ends, routes to it by the original routing key.
    """
    # Imported here: only kombu 5.5 and later has it, and few rows need it.
    from kombu.transport.native_delayed_delivery import CELERY_DELAYED_DELIVERY_EXCHANGE, calculate_routing_key

    delayed = _DELAY_EXCHANGE.match(exchange)
    bits = _DELAY_BITS.match(routing_key)
    due = _parse_eta(eta)
    if delayed is None or bits is None or due is None:
        return exchange, routing_key
    original_key = routing_key[bits.end() :]
    seconds = (due - now) // 1_000_000
    if seconds < 1:
        return (delayed["prefix"] or "") + CELERY_DELAYED_DELIVERY_EXCHANGE, original_key
    return exchange, calculate_routing_key(min(seconds, MAX_DELAY_SECONDS), original_key)


def _parse_eta(eta: object) -> int | None:
    try:
        moment = eta if isinstance(eta, datetime) else datetime.fromisoformat(str(eta))
    except ValueError:
        return None
    return from_datetime(moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC))
