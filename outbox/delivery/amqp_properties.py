"""
Encode the basic properties of AMQP messages, the costliest part of sending one.

Every value is encoded by py-amqp. This module puts the pieces together and remembers those that repeat from message to
message: content types, Celery's headers that are mostly null, timestamps in seconds. What comes out equals what py-amqp
makes of the same message, byte for byte; a test holds it to that.
"""

from __future__ import annotations

from struct import pack
from typing import Any

import amqp
from amqp.serialization import dumps

from outbox.delivery.wire import Wire
from outbox.errors import UndecodableMessage

MAX_REMEMBERED = 10_000
LONGEST_REMEMBERED = 100  # characters; what is longer hardly repeats

# (name, py-amqp's letter for its type, flag), in the order of the protocol.
_PROPERTIES = [(name, kind, 1 << (15 - index)) for index, (name, kind) in enumerate(amqp.Message.PROPERTIES)]
_NEVER_REPEATS = frozenset({"message_id", "correlation_id"})
_MAY_REPEAT = frozenset({str, int, bool, type(None)})  # no floats: 0.0 == -0.0


class PropertiesEncoder:
    """Its memory is bounded; one per publisher."""

    def __init__(self) -> None:
        self._values: dict[tuple[str, Any], bytes] = {}
        self._items: dict[tuple[str, type, Any], bytes] = {}

    def encode(self, wire: Wire) -> bytes:
        """Flags and values, as they follow the body size in the header frame. Raises UndecodableMessage."""
        try:
            return self._encode(wire.headers, wire.properties)
        except Exception as error:
            # py-amqp raises whatever struct and the value's methods raise, and quotes the value after this word.
            reason = str(error).partition("[value")[0]
            raise UndecodableMessage(f"AMQP cannot carry a property or header of it: {reason}") from error

    def _encode(self, headers: dict[str, Any], properties: dict[str, Any]) -> bytes:
        flags = 0
        pieces = [b""]
        for name, kind, flag in _PROPERTIES:
            if kind == "F":
                pieces.append(self._table(headers))
            elif (value := properties.get(name)) is None:
                continue
            elif name in _NEVER_REPEATS:
                pieces.append(dumps(kind, (value,)))
            else:
                pieces.append(self._values.get((kind, value)) or self._value(kind, value))
            flags |= flag
        pieces[0] = pack(">H", flags)
        return b"".join(pieces)

    def _value(self, kind: str, value: Any) -> bytes:
        encoded: bytes = dumps(kind, (value,))
        if len(self._values) >= MAX_REMEMBERED:
            self._values.clear()
        self._values[kind, value] = encoded
        return encoded

    def _table(self, headers: dict[str, Any]) -> bytes:
        known = self._items
        items = []
        for key, value in headers.items():
            kind = type(value)
            item = known.get((key, kind, value)) if kind in _MAY_REPEAT else None  # with the type: 1 == True
            items.append(item or self._item(key, kind, value))
        encoded = b"".join(items)
        return pack(">I", len(encoded)) + encoded

    def _item(self, key: str, kind: type, value: Any) -> bytes:
        """One entry of the headers: a table of one entry, without the length of the table."""
        entry = (key, kind, value)
        if kind is list:
            # Such as Celery's time limits, [null, null]. Nothing that nests: it would take longer to compare.
            kinds = tuple(map(type, value))
            if not _MAY_REPEAT.issuperset(kinds):
                return _encode_item(key, value)
            entry = (key, kind, (kinds, *value))
        elif kind not in _MAY_REPEAT or (kind is str and len(value) > LONGEST_REMEMBERED):
            return _encode_item(key, value)
        item = self._items.get(entry)
        if item is None:
            item = _encode_item(key, value)
            if len(self._items) >= MAX_REMEMBERED:
                self._items.clear()
            self._items[entry] = item
        return item


def _encode_item(key: str, value: Any) -> bytes:
    item: bytes = dumps("F", ({key: value},))[4:]
    return item
