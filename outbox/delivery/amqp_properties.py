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
LONGEST_REMEMBERED = 100

_HEADERS = "application_headers"
_FIRST_FLAG = 1 << 15
# (name, py-amqp's letter for its type, flag), in the order of the protocol.
_PROPERTIES = [(name, kind, _FIRST_FLAG >> position) for position, (name, kind) in enumerate(amqp.Message.PROPERTIES)]
_SCALARS = frozenset({str, int, float, bool, type(None)})


class PropertiesEncoder:
    """Its memory is bounded; one per publisher."""

    def __init__(self) -> None:
        self._values: dict[tuple[str, Any], bytes] = {}
        self._items: dict[tuple[str, type, Any], bytes] = {}

    def encode(self, wire: Wire) -> bytes:
        """Flags and values, as they follow the body size in the header frame. Raises UndecodableMessage."""
        flags = 0
        pieces = [b""]
        given = wire.properties
        try:
            for name, kind, flag in _PROPERTIES:
                if name == _HEADERS:
                    piece = self._table(wire.headers)
                elif (value := given.get(name)) is None:
                    continue
                else:
                    piece = self._values.get((kind, value)) or self._value(kind, value)
                flags |= flag
                pieces.append(piece)
        except Exception as error:
            # py-amqp raises whatever struct and the value's methods raise, and quotes the value after this word.
            reason = str(error).partition("[value")[0]
            raise UndecodableMessage(f"AMQP cannot carry a property or header of it: {reason}") from error
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
        items = b"".join(
            [known.get((key, type(value), value)) if type(value) in _SCALARS else None or self._item(key, value)
             for key, value in headers.items()]
        )
        return pack(">I", len(items)) + items
