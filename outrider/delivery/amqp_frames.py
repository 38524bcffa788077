"""
Encode one message as AMQP frames: basic.publish, the header frame with the properties, the body in pieces.

The bytes equal those of py-amqp's frame writer, which a test checks; py-amqp takes twice the time. What cannot be
encoded raises UndecodableMessage.
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct
from typing import NamedTuple

from amqp import spec
from amqp.serialization import dumps

from outrider.delivery.amqp_properties import encode_properties
from outrider.delivery.broker_message import to_broker_message
from outrider.errors import UndecodableMessage
from outrider.storage.message import Message

ROUTES_CACHED = 10_000

_FRAME_OVERHEAD = 8  # type, channel and size in front of a frame's payload, the end mark behind it
_HEADER_FRAME_OVERHEAD = _FRAME_OVERHEAD + 12  # class, weight and body size in front of the properties
_METHOD_FRAME, _HEADER_FRAME, _BODY_FRAME = 1, 2, 3
_FRAME_END = b"\xce"
_METHOD = Struct(">BHIHH")  # frame type, channel, size, class and number of the method
_HEADER = Struct(">cBHIHHQ")  # end of the frame before, frame type, channel, size, class, weight, size of the body
_BODY = Struct(">cBHI")  # end of the frame before, frame type, channel, size
_IMMEDIATE = False


class Envelope(NamedTuple):
    """An encoded message. `order` counts up with every message of a publisher."""

    order: int
    message: Message
    message_id: str
    exchange: str
    arguments: bytes
    properties: bytes


def encode_envelope(order: int, message: Message, now: int, frame_max: int) -> Envelope:
    """Encode a row as it is to be sent at `now` (server time)."""
    broker_message = to_broker_message(message, now)
    exchange, message_id = broker_message.exchange, broker_message.properties["message_id"]
    arguments = _publish_arguments(exchange, broker_message.routing_key, broker_message.mandatory)
    encoded = encode_properties(broker_message)
    if len(encoded) + _HEADER_FRAME_OVERHEAD > frame_max:
        # The broker would close the connection.
        raise UndecodableMessage(f"headers and properties of {len(encoded)} bytes exceed an AMQP frame")
    return Envelope(order, message, message_id, exchange, arguments, encoded)


def frames_of(channel: int, envelope: Envelope, frame_max: int) -> list[bytes | memoryview]:
    """The frames of a message, in pieces to be joined. The pieces of a body of several frames are not copies."""
    arguments, properties, body = envelope.arguments, envelope.properties, envelope.message.payload
    class_id, method_id = spec.Basic.Publish
    pieces: list[bytes | memoryview] = [
        _METHOD.pack(_METHOD_FRAME, channel, 4 + len(arguments), class_id, method_id),
        arguments,
        _HEADER.pack(_FRAME_END, _HEADER_FRAME, channel, 12 + len(properties), class_id, 0, len(body)),
        properties,
    ]
    room = frame_max - _FRAME_OVERHEAD
    source = body if len(body) <= room else memoryview(body)
    for start in range(0, len(body), room):
        piece = source[start : start + room]
        pieces += (_BODY.pack(_FRAME_END, _BODY_FRAME, channel, len(piece)), piece)
    pieces.append(_FRAME_END)
    return pieces


@lru_cache(ROUTES_CACHED)
def _publish_arguments(exchange: str, routing_key: str, mandatory: bool) -> bytes:
    """The arguments of basic.publish: the same for every message of a route."""
    try:
        encoded: bytes = dumps("Bssbb", (0, exchange, routing_key, mandatory, _IMMEDIATE))
    except Exception as error:
        raise UndecodableMessage("its exchange or routing key is longer than AMQP's 255 bytes") from error
    return encoded
