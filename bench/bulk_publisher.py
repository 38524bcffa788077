"""
BulkPublisher: publishes messages as fast as RabbitMQ confirms them, which measures the broker's limit.

All messages are encoded beforehand. They are mandatory and persistent, go to a durable queue and are confirmed, with as
many in flight as the relay allows.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from typing import Final

import amqp
from amqp import spec
from amqp.method_framing import frame_writer
from amqp.serialization import dumps

from bench.broker import METHOD_FRAME, Frames, open_connection
from bench.messages import EVENT_TYPE, HEADERS, body, event_id

WINDOW_MESSAGES: Final = 5_000  # like the relay
WRITE_MESSAGES: Final = 500
BASIC_ACK: Final = struct.pack(">HH", *spec.Basic.Ack)

_ACK: Final = struct.Struct(">QB")


class _Buffer:
    """The part of a transport that the frame writer uses."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.write = self.data.extend


class BulkPublisher:
    def __init__(self, url: str, queue: str, messages: int) -> None:
        self._connection = open_connection(url)
        self._channel = self._connection.channel()
        self._channel.confirm_select()
        self._messages = messages
        self._writes = list(self._encode(queue))

    def run(self) -> float:
        """Publish all messages. Returns the seconds until the last confirm."""
        socket = self._connection.transport.sock
        frames, confirms = Frames(self._connection), _Confirms()
        writes = iter(self._writes)
        sent = 0
        started = time.perf_counter()
        while confirms.count < self._messages:
            while sent < self._messages and sent - confirms.count <= WINDOW_MESSAGES - WRITE_MESSAGES:
                socket.sendall(next(writes))
                sent = min(self._messages, sent + WRITE_MESSAGES)
            for kind, payload in frames.read():
                if kind == METHOD_FRAME and payload[:4] == BASIC_ACK:
                    confirms.add(*_ACK.unpack_from(payload, 4))
        return time.perf_counter() - started

    def close(self) -> None:
        self._connection.close()

    def _encode(self, queue: str) -> Iterator[bytes]:
        """Encode the frames of each write."""
        buffer = _Buffer()
        write_frame = frame_writer(self._connection, buffer)
        arguments = dumps("Bssbb", (0, "", queue, True, False))  # ..., mandatory, not immediate
        timestamp = int(time.time())
        for number in range(self._messages):
            message = amqp.Message(
                body(number),
                content_type="application/json",
                content_encoding="utf-8",
                delivery_mode=2,
                message_id=str(event_id(number)),
                type=EVENT_TYPE,
                timestamp=timestamp,
                application_headers=HEADERS,
            )
            write_frame(METHOD_FRAME, self._channel.channel_id, spec.Basic.Publish, arguments, message)
            if (number + 1) % WRITE_MESSAGES == 0 or number + 1 == self._messages:
                yield bytes(buffer.data)
                buffer.data.clear()


class _Confirms:
    """Counts confirms: the broker mixes confirms of single messages and of all messages up to one."""

    def __init__(self) -> None:
        self._up_to = 0
        self._single: set[int] = set()

    @property
    def count(self) -> int:
        return self._up_to + len(self._single)

    def add(self, tag: int, multiple: int) -> None:
        if not multiple:
            self._single.add(tag)
            return
        self._up_to = max(self._up_to, tag)
        self._single = {single for single in self._single if single > self._up_to}
