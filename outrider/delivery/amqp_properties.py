"""
Encode the basic properties of AMQP messages, the costliest part of sending one.

What comes out equals what py-amqp makes of the same message, byte for byte; a test holds it to that. It takes half
the time: py-amqp writes every value through a stream and looks at the format letter by letter, where this joins pieces,
most of which (names of headers, content types, timestamps in seconds) it remembers. Values that JSON does not know are
left to py-amqp.
"""

from __future__ import annotations

from math import isfinite
from struct import Struct
from typing import Any

import amqp
from amqp.serialization import dumps

from outrider.delivery.broker_message import BrokerMessage
from outrider.errors import UndecodableMessage

MAX_REMEMBERED = 10_000

# (name, py-amqp's letter for its type, flag), in the order of the protocol.
_PROPERTIES = [(name, kind, 1 << (15 - index)) for index, (name, kind) in enumerate(amqp.Message.PROPERTIES)]
_NEVER_REPEATS = frozenset({"message_id", "correlation_id"})

_FLAGS = Struct(">H")
_SHORT_SIZE = Struct("B")
_SIZE = Struct(">I")
_TEXT = Struct(">cI")
_INTEGER = Struct(">ci")
_LONG_INTEGER = Struct(">cq")
_FLOAT = Struct(">cd")


class PropertiesEncoder:
    """Its memory is bounded; one per publisher."""

    def __init__(self) -> None:
        self._plans: dict[tuple[str, ...], tuple[bytes, list[tuple[str, str]]]] = {}
        self._values: dict[tuple[str, Any], bytes] = {}
        self._names: dict[str, bytes] = {}

    def encode(self, wire: BrokerMessage) -> bytes:
        """Flags and values, as they follow the body size in the header frame. Raises UndecodableMessage."""
        try:
            return self._encode(wire.headers, wire.properties)
        except Exception as error:
            # py-amqp raises whatever struct and the value's methods raise, and quotes the value after this word.
            reason = str(error).partition("[value")[0]
            raise UndecodableMessage(f"AMQP cannot carry a property or header of it: {reason}") from error

    def _encode(self, headers: dict[str, Any], properties: dict[str, Any]) -> bytes:
        flags, plan = self.plan_for(properties)
        pieces = [flags]
        name = ""
        try:
            for name, kind in plan:
                if kind == "F":
                    pieces.append(self._table(headers))
                    continue
                value = properties[name]
                if name in _NEVER_REPEATS:
                    text = _bytes(value)
                    pieces += (_SHORT_SIZE.pack(len(text)), text)
                else:
                    pieces.append(self.value(kind, value))
        except Exception as error:
            raise ValueError(f"{name}: {error}") from error
        return b"".join(pieces)

    def plan_for(self, properties: dict[str, Any]) -> tuple[bytes, list[tuple[str, str]]]:
        """For messages that have these properties: the flags, and which values follow, in order."""
        names = tuple(properties)
        return self._plans.get(names) or self._plan(names)

    def value(self, kind: str, value: Any) -> bytes:
        """A property of one of py-amqp's kinds."""
        return self._values.get((kind, value)) or self._value(kind, value)

    def name(self, name: str) -> bytes:
        """The name of a header."""
        return self._names.get(name) or self._name(name)

    def item(self, value: Any) -> bytes:
        """A value of a table or an array, with the letter for its type."""
        kind = type(value)
        if value is None:
            return b"V"
        if kind is str:
            text = _bytes(value)
            return _TEXT.pack(b"S", len(text)) + text
        if kind is bool:
            return b"t\1" if value else b"t\0"
        if kind is int:
            small = -2147483647 <= value <= 2147483647
            return _INTEGER.pack(b"I", value) if small else _LONG_INTEGER.pack(b"L", value)
        if kind is float:
            if not isfinite(value):  # JSON's 1e400; the broker would close the connection over it
                raise ValueError("not a finite number")
            return _FLOAT.pack(b"d", value)
        if kind is dict:
            return b"F" + self._table(value)
        if kind is list:
            return b"A" + _sized([self.item(each) for each in value])
        encoded: bytes = dumps("A", ([value],))
        return encoded[4:]

    def _plan(self, names: tuple[str, ...]) -> tuple[bytes, list[tuple[str, str]]]:
        plan = [(name, kind, flag) for name, kind, flag in _PROPERTIES if kind == "F" or name in names]
        found = _FLAGS.pack(sum(flag for _, _, flag in plan)), [(name, kind) for name, kind, _ in plan]
        if len(self._plans) >= MAX_REMEMBERED:
            self._plans.clear()
        self._plans[names] = found
        return found

    def _value(self, kind: str, value: Any) -> bytes:
        encoded: bytes = dumps(kind, (value,))
        if len(self._values) >= MAX_REMEMBERED:
            self._values.clear()
        self._values[kind, value] = encoded
        return encoded

    def _table(self, table: dict[str, Any]) -> bytes:
        pieces: list[bytes] = []
        for name, value in table.items():
            encoded_name = self._names.get(name) or self._name(name)
            if type(value) is str:  # nearly all of them
                text = _bytes(value)
                pieces += (encoded_name, _TEXT.pack(b"S", len(text)), text)
            elif value is None:  # half of a task's
                pieces += (encoded_name, b"V")
            else:
                try:
                    pieces += (encoded_name, self.item(value))
                except Exception as error:
                    raise ValueError(f"{name}: {error}") from error
        return _sized(pieces)

    def _name(self, name: str) -> bytes:
        text = _bytes(name)
        if len(text) > 255:
            raise ValueError("a name is longer than 255 bytes")
        encoded = _SHORT_SIZE.pack(len(text)) + text
        if len(self._names) >= MAX_REMEMBERED:
            self._names.clear()
        self._names[name] = encoded
        return encoded


def _sized(pieces: list[bytes]) -> bytes:
    body = b"".join(pieces)
    return _SIZE.pack(len(body)) + body


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
