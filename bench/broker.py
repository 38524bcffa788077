"""
Connections, queues and raw frames for the benchmarks.

py-amqp does the handshake. After it, the clients of a benchmark read frames with `Frames`, so that their own cost is
small compared with the broker's.
"""

from __future__ import annotations

import struct
from typing import Any, Final
from urllib.parse import urlsplit

import amqp

METHOD_FRAME: Final = 1
HEADER_FRAME: Final = 2
BODY_FRAME: Final = 3
RECEIVE_BYTES: Final = 1 << 18

_FRAME: Final = struct.Struct(">BHI")


def open_connection(url: str) -> Any:
    parts = urlsplit(url)
    connection = amqp.Connection(
        host=f"{parts.hostname}:{parts.port}", userid=parts.username, password=parts.password, heartbeat=0
    )
    connection.connect()
    return connection


def declare_queue(url: str, queue: str) -> None:
    """Declare a durable queue and empty it."""
    with open_connection(url) as connection, connection.channel() as channel:
        channel.queue_declare(queue, durable=True, auto_delete=False)
        channel.queue_purge(queue)


def delete_queue(url: str, queue: str) -> None:
    with open_connection(url) as connection, connection.channel() as channel:
        channel.queue_delete(queue)


def depth(url: str, queue: str) -> int:
    """Number of messages in the queue."""
    with open_connection(url) as connection, connection.channel() as channel:
        return int(channel.queue_declare(queue, passive=True).message_count)


class Frames:
    """Reads frames from a connection's socket."""

    def __init__(self, connection: Any) -> None:
        self._socket = connection.transport.sock
        self._rest = bytes(connection.transport._read_buffer)

    def read(self) -> list[tuple[int, bytes]]:
        """Receive once and return (kind, payload) of every complete frame. Raises TimeoutError."""
        data = self._socket.recv(RECEIVE_BYTES)
        if not data:
            raise ConnectionError("the broker closed the connection")
        data = self._rest + data
        frames = []
        position = 0
        while len(data) - position >= _FRAME.size:
            kind, _, size = _FRAME.unpack_from(data, position)
            start = position + _FRAME.size
            if len(data) < start + size + 1:
                break
            frames.append((kind, data[start : start + size]))
            position = start + size + 1  # a frame ends with an end octet
        self._rest = data[position:]
        return frames
