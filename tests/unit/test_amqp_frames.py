"""The frames of a message equal those of py-amqp's frame writer, byte for byte."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import amqp
import pytest
from amqp import spec
from amqp.method_framing import frame_writer
from amqp.serialization import dumps

from outrider.delivery.amqp_frames import Envelope, frames_of
from tests.fixtures.messages import make_message

FRAME_MAX = 4096


def py_amqp_frames(arguments: bytes, properties: dict[str, Any], body: bytes) -> bytes:
    written = bytearray()
    connection = SimpleNamespace(frame_max=FRAME_MAX, bytes_sent=0)
    write = frame_writer(connection, SimpleNamespace(write=written.extend))
    write(1, 7, spec.Basic.Publish, arguments, amqp.Message(body, **properties))
    return bytes(written)


@pytest.mark.parametrize("size", [0, 1, 150, FRAME_MAX - 9, FRAME_MAX - 8, FRAME_MAX - 7, 3 * FRAME_MAX, 100_000])
def test_frames_equal_those_of_py_amqp(size: int) -> None:
    body = b"x" * size
    properties = {"message_id": "42", "delivery_mode": 2, "application_headers": {"tenant": "acme"}}
    arguments = dumps("Bssbb", (0, "shop", "order.placed", True, False))
    envelope = Envelope(
        order=1,
        message=make_message(payload=body),
        message_id="42",
        exchange="shop",
        arguments=arguments,
        properties=amqp.Message(body, **properties)._serialize_properties(),
    )

    assert b"".join(frames_of(7, envelope, FRAME_MAX)) == py_amqp_frames(arguments, properties, body)
