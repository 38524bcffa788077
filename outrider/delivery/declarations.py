"""
Declare the queues and exchanges of a row's `declarations` column before the row is sent.

The column is a JSON array of what kombu's `Queue.as_dict(recurse=True)` returns, without values that equal kombu's
defaults. Bindings are objects with an exchange, a routing key and arguments. An object with a `type` is an exchange.
A text is declared once per connection, because declaring takes a round trip.

Values that AMQP cannot carry are found before anything is sent: RabbitMQ answers an infinite number with a reset of the
connection.
"""

from __future__ import annotations

from math import isfinite
from typing import Any

from kombu import Exchange, Queue, binding

from outrider.delivery.broker_message import is_text, parse_json
from outrider.errors import UndecodableMessage

# Each rpc:// producer declares a reply queue of its own, so the number of texts is limited.
MAX_REMEMBERED = 10_000


def declare(text: str, channel: Any, declared: set[str]) -> None:
    """
    Declare everything in the text on a kombu channel, unless `declared` has the text; then add it there.

    `declared` belongs to one connection. Raises the broker's error, or UndecodableMessage.
    """
    if text in declared:
        return
    for each in parse_declarations(text):
        each.declare(channel=channel)
    if len(declared) >= MAX_REMEMBERED:
        declared.clear()
    declared.add(text)


def parse_declarations(text: str) -> list[Any]:
    entries = parse_json(text, "declarations")
    if not isinstance(entries, list):
        raise UndecodableMessage("declarations is not a JSON array")
    _check_values(entries)
    try:
        return [Exchange(**entry) if "type" in entry else _queue(**entry) for entry in entries]
    except (TypeError, ValueError) as error:
        raise UndecodableMessage(f"declarations has an entry that is no queue: {type(error).__name__}") from error


def _check_values(value: Any) -> None:
    """Raise UndecodableMessage for numbers and texts that AMQP cannot carry."""
    if isinstance(value, dict):
        for name, each in value.items():
            _check_values(name)
            _check_values(each)
    elif isinstance(value, list):
        for each in value:
            _check_values(each)
    elif isinstance(value, str):
        if not is_text(value):
            raise UndecodableMessage("declarations has text that UTF-8 cannot encode")
    elif isinstance(value, float):
        if not isfinite(value):
            raise UndecodableMessage("declarations has a number that is not finite")
    elif isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise UndecodableMessage("declarations has a number of more than 64 bits")


def _queue(exchange: Any = None, bindings: Any = None, **attributes: Any) -> Any:
    return Queue(exchange=_exchange(exchange), bindings=[_binding(**each) for each in bindings or ()], **attributes)


def _binding(exchange: Any = None, **attributes: Any) -> Any:
    return binding(_exchange(exchange), **attributes)


def _exchange(given: Any) -> Any:
    return Exchange(**given) if isinstance(given, dict) else Exchange(given or "")
