"""
The broker's side of a benchmark: queues, a client that only sends, and a client that only receives.

Both clients leave the handshake to py-amqp and then read and write frames on the bare socket, so that what they cost
is next to nothing beside what the broker costs.
"""

from __future__ import annotations

import json
import struct
import time
from array import array
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import urlsplit

import amqp
from amqp import spec
from amqp.method_framing import frame_writer
from amqp.serialization import dumps

from bench.traffic import EVENT_TYPE, HEADERS, MESSAGE_ID, body, event_id

METHOD_FRAME: Final = 1
HEADER_FRAME: Final = 2
BODY_FRAME: Final = 3
BASIC_ACK: Final = struct.pack(">HH", *spec.Basic.Ack)
RECEIVE_BYTES: Final = 1 << 18
WINDOW_MESSAGES: Final = 5_000  # as the relay's
WRITE_MESSAGES: Final = 500

_FRAME = struct.Struct(">BHI")
_ACK = struct.Struct(">QB")


class Arrivals:
    """Which messages came, by their numbers, and when."""

    def __init__(self) -> None:
        self.numbers = array("q")
        self.times = array("q")
        """Nanoseconds of the monotonic clock, which all processes of a machine share."""

    def problem(self, expected: int, *, first: int = 0) -> str | None:
        """What is wrong with the set of messages; duplicates are allowed, at least once is the promise."""
        wanted = set(range(first, first + expected))
        got = set(self.numbers)
        if got == wanted:
            return None
        return f"{len(wanted - got)} of {expected} messages are missing, {len(got - wanted)} were not sent"

    @property
    def duplicates(self) -> int:
        return len(self.numbers) - len(set(self.numbers))


def open_connection(url: str) -> Any:
    parts = urlsplit(url)
    connection = amqp.Connection(
        host=f"{parts.hostname}:{parts.port}", userid=parts.username, password=parts.password, heartbeat=0
    )
    connection.connect()
    return connection


def declare_queue(url: str, queue: str) -> None:
    """A durable queue on the default exchange, empty."""
    with open_connection(url) as connection, connection.channel() as channel:
        channel.queue_declare(queue, durable=True, auto_delete=False)
        channel.queue_purge(queue)


def delete_queue(url: str, queue: str) -> None:
    with open_connection(url) as connection, connection.channel() as channel:
        channel.queue_delete(queue)


class PreparedBlast:
    """
    What the broker takes: messages encoded beforehand, sent with a window of unconfirmed ones. Mandatory, persistent.
    """

    def __init__(self, url: str, queue: str, messages: int) -> None:
        self._connection = open_connection(url)
        self._channel = self._connection.channel()
        self._channel.confirm_select()
        self._messages = messages
        self._writes = list(self._encode(queue))

    def _encode(self, queue: str) -> Iterator[bytes]:
        """As many frames as leave in one write."""
        buffer = _Buffer()
        write_frame = frame_writer(self._connection, buffer)
        arguments = dumps("Bssbb", (0, "", queue, True, False))
        stamp = int(time.time())
        for number in range(self._messages):
            message = amqp.Message(
                body(number),
                content_type="application/json",
                content_encoding="utf-8",
                delivery_mode=2,
                message_id=str(event_id(number)),
                type=EVENT_TYPE,
                timestamp=stamp,
                application_headers=HEADERS,
            )
            write_frame(METHOD_FRAME, self._channel.channel_id, spec.Basic.Publish, arguments, message)
            if (number + 1) % WRITE_MESSAGES == 0 or number + 1 == self._messages:
                yield bytes(buffer.data)
                buffer.data.clear()

    def run(self) -> float:
        """Seconds until the last message is confirmed."""
        socket = self._connection.transport.sock
        confirmed = sent = 0
        writes = iter(self._writes)
        frames = Frames(socket)
        started = time.perf_counter()
        while confirmed < self._messages:
            while sent < self._messages and sent - confirmed <= WINDOW_MESSAGES - WRITE_MESSAGES:
                socket.sendall(next(writes))
                sent = min(self._messages, sent + WRITE_MESSAGES)
            confirmed += _confirms(frames, confirmed)
        return time.perf_counter() - started

    def close(self) -> None:
        self._connection.close()


def _confirms(frames: Frames, confirmed: int) -> int:
    """How many more the broker has confirmed; single and multiple confirms mix."""
    count = 0
    for kind, payload in frames.read():
        if kind == METHOD_FRAME and payload[:4] == BASIC_ACK:
            tag, multiple = _ACK.unpack_from(payload, 4)
            # RabbitMQ confirms "multiple" up to its lowest unconfirmed tag; singles beyond that are counted one by one.
            count += tag - (confirmed + count) if multiple else 1
    return count
