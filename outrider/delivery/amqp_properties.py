"""
Encode the basic properties of an AMQP message: flags and values, as they follow the body size in the header frame.

The bytes equal those of py-amqp for the same message, which a property test checks. py-amqp takes about three times
as long. Types that JSON does not have (decimals, datetimes) are left to py-amqp.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import isfinite
from struct import Struct
from typing import Any

import amqp
from amqp.serialization import dumps

from outrider.delivery.broker_message import BrokerMessage
from outrider.errors import UndecodableMessage

STRINGS_CACHED = 1_000  # names of headers, content types, message types: the same few in all messages

_pack_flags = Struct(">H").pack
_pack_octet = Struct("B").pack
_pack_size = Struct(">I").pack
_pack_text_size = Struct(">cI").pack
_pack_integer = Struct(">ci").pack
_pack_long_integer = Struct(">cq").pack
_pack_float = Struct(">cd").pack


def encode_properties(message: BrokerMessage) -> bytes:
    """Raises UndecodableMessage, which names the property or header and does not quote its value."""
    properties = message.properties
    flags = 0
    pieces = [b""]
    name = ""
    try:
        for name, encode, flag in _PROPERTIES:
            value = message.headers if encode is _encode_table else properties.get(name)
            if value is not None:
                pieces.append(encode(value))
                flags |= flag
    except Exception as error:
        # py-amqp raises whatever struct and the value's methods raise, and quotes the value after "[value".
        reason = str(error).partition("[value")[0]
        raise UndecodableMessage(f"AMQP cannot carry a property or header of it: {name}: {reason}") from error
    pieces[0] = _pack_flags(flags)
    return b"".join(pieces)


def _encode_table(table: dict[str, Any]) -> bytes:
    pieces: list[bytes] = []
    for name, value in table.items():
        try:
            pieces.append(_encode_repeating(name))
            pieces.append(_encode_item(value))
        except Exception as error:
            raise ValueError(f"{name}: {error}") from error
    return _with_size(pieces)


def _encode_item(value: Any) -> bytes:
    """A value of a table or an array, with the letter for its type."""
    kind = type(value)
    if kind is str:
        text: bytes = value.encode("utf-8", "surrogatepass")
        return _pack_text_size(b"S", len(text)) + text
    if value is None:
        return b"V"
    if kind is bool:
        return b"t\1" if value else b"t\0"
    if kind is int:
        small = -2147483647 <= value <= 2147483647
        return _pack_integer(b"I", value) if small else _pack_long_integer(b"L", value)
    if kind is float:
        if not isfinite(value):  # JSON's 1e400; the broker would close the connection
            raise ValueError("not a finite number")
        return _pack_float(b"d", value)
    if kind is dict:
        return b"F" + _encode_table(value)
    if kind is list:
        return b"A" + _with_size([_encode_item(each) for each in value])
    encoded: bytes = dumps("A", ([value],))
    return encoded[4:]  # without the size of the array


def _encode_short_string(text: str) -> bytes:
    encoded = text.encode("utf-8", "surrogatepass")
    if len(encoded) > 255:
        raise ValueError("longer than 255 bytes")
    return _pack_octet(len(encoded)) + encoded


def _with_size(pieces: list[bytes]) -> bytes:
    body = b"".join(pieces)
    return _pack_size(len(body)) + body


_encode_repeating = lru_cache(STRINGS_CACHED)(_encode_short_string)
_ENCODERS: dict[str, Callable[[Any], bytes]] = {
    "s": _encode_repeating,
    "o": _pack_octet,
    "L": Struct(">Q").pack,
    "F": _encode_table,
}
_UNIQUE = {"message_id", "correlation_id", "expiration"}  # strings of one message: not worth caching

# Name, encoder and flag, in the order of the protocol.
_PROPERTIES: list[tuple[str, Callable[[Any], bytes], int]] = [
    (name, _encode_short_string if name in _UNIQUE else _ENCODERS[kind], 1 << (15 - index))
    for index, (name, kind) in enumerate(amqp.Message.PROPERTIES)
]
