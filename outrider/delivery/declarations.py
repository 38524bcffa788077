"""
Declare the queues and exchanges of a row's `declarations` column before the row is sent.

The column is a JSON array of what kombu's `Queue.as_dict(recurse=True)` returns, without values that equal kombu's
defaults. Bindings are objects with an exchange, a routing key and arguments. An object with a `type` is an exchange.
`Declared` remembers which texts were declared on a connection, because declaring takes a round trip.
"""

from __future__ import annotations

from typing import Any

from kombu import Exchange, Queue, binding

from outrider.delivery.broker_message import parse_json
from outrider.errors import UndecodableMessage

# Each rpc:// producer declares a reply queue of its own, so the number of texts is limited.
MAX_REMEMBERED = 10_000


class Declared:
    """The texts that were declared on the present connection."""

    def __init__(self) -> None:
        self._texts: set[str | bytes] = set()

    def __contains__(self, text: str | bytes) -> bool:
        return text in self._texts

    def remember(self, text: str | bytes) -> None:
        if len(self._texts) >= MAX_REMEMBERED:
            self._texts.clear()
        self._texts.add(text)

    def forget(self, text: str | bytes) -> None:
        """Declare it again next time: its queue may have been deleted."""
        self._texts.discard(text)

    def clear(self) -> None:
        self._texts.clear()


def declare(text: str | bytes, channel: Any) -> None:
    """Declare everything in the text on a kombu channel. Raises the broker's error, or UndecodableMessage."""
    for each in parse_declarations(text):
        each.declare(channel=channel)


def parse_declarations(text: str | bytes) -> list[Any]:
    entries = parse_json(text, "declarations")
    if not isinstance(entries, list):
        raise UndecodableMessage("declarations is not a JSON array")
    try:
        return [Exchange(**entry) if "type" in entry else _queue(**entry) for entry in entries]
    except (TypeError, ValueError) as error:
        raise UndecodableMessage(f"declarations has an entry that is no queue: {type(error).__name__}") from error


def _queue(exchange: Any = None, bindings: Any = None, **attributes: Any) -> Any:
    return Queue(exchange=_exchange(exchange), bindings=[_binding(**each) for each in bindings or ()], **attributes)


def _binding(exchange: Any = None, **attributes: Any) -> Any:
    return binding(_exchange(exchange), **attributes)


def _exchange(given: Any) -> Any:
    return Exchange(**given) if isinstance(given, dict) else Exchange(given or "")
