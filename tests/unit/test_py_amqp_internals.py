"""The private parts of py-amqp that amqp_connection.py replaces work as it expects."""

from __future__ import annotations

from typing import Any

import pytest
from amqp.transport import SSLTransport, TCPTransport

HEARTBEAT = b"\x08\x00\x00\x00\x00\x00\x00\xce"
METHOD = b"\x01\x00\x07\x00\x00\x00\x04\x00\x3c\x00\x50\xce"


@pytest.fixture(params=[TCPTransport, SSLTransport])
def transport(request: pytest.FixtureRequest) -> Any:
    return request.param("localhost:5672")  # not connected


def arriving(transport: Any, *pieces: bytes | Exception) -> list[int]:
    """Have these pieces arrive; returns the list of the sizes that py-amqp asks for."""
    asked: list[int] = []
    left = list(pieces)

    def receive(size: int) -> bytes:
        asked.append(size)
        piece = left.pop(0)
        if isinstance(piece, Exception):
            raise piece
        return piece

    transport._quick_recv = receive
    return asked


def test_frames_are_read_through_quick_recv_which_may_return_more_than_asked_for(transport: Any) -> None:
    asked = arriving(transport, HEARTBEAT + METHOD + METHOD[:3], METHOD[3:])
    assert [transport.read_frame() for _ in range(3)] == [
        (8, 0, b""),
        (1, 7, b"\x00\x3c\x00\x50"),
        (1, 7, b"\x00\x3c\x00\x50"),
    ]
    assert len(asked) == 2


@pytest.mark.parametrize("arrived", range(1, len(METHOD)))
def test_a_partial_frame_is_kept_after_a_timeout(transport: Any, arrived: int) -> None:
    arriving(transport, METHOD[:arrived], TimeoutError(), METHOD[arrived:])
    with pytest.raises(TimeoutError):
        transport.read_frame()
    assert transport.read_frame() == (1, 7, b"\x00\x3c\x00\x50")


def test_everything_is_written_through_write(transport: Any) -> None:
    written: list[bytes] = []
    transport._write = written.append
    transport.write(METHOD)
    assert written == [METHOD]
