"""
A consumer: `python -m tests.faults.consumer URL QUEUE FILE` records each message in a file, then acknowledges it.

One line of LINE_BYTES for each delivery, in the order of the queue, so that the file size gives the number of
deliveries. The line is written before the acknowledgement: a consumer that is killed in between receives the message
again. It connects to the broker directly and uses no code under test.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import kombu
from kombu.exceptions import OperationalError

from tests.faults.history import Delivery

_kombu: Any = kombu  # its classes are untyped

LINE_BYTES = 60
PREFETCH = 200
RECONNECT_SECONDS = 0.2
HEARTBEAT_SECONDS = 20


def line(at: float, event_id: str, redelivered: bool) -> bytes:
    return f"{at:20.6f} {event_id:36.36s} {redelivered:d}\n".encode()


def read_deliveries(file: Path, began: float) -> list[Delivery]:
    """The deliveries recorded so far, without an incomplete last line."""
    data = file.read_bytes() if file.exists() else b""
    lines = (data[start : start + LINE_BYTES] for start in range(0, len(data) - LINE_BYTES + 1, LINE_BYTES))
    fields = (text.decode().split() for text in lines)
    return [Delivery(event_id, float(at) - began, redelivered == "1") for at, event_id, redelivered in fields]


class Stopped(Exception):
    """Raised by the SIGTERM handler."""


def _stop(*_: object) -> None:
    raise Stopped


def consume(url: str, queue: str, record: int) -> None:
    """Consume over one connection until it is lost."""
    with _kombu.Connection(url, connect_timeout=2, heartbeat=HEARTBEAT_SECONDS) as connection:
        connection.ensure_connection(max_retries=1, timeout=2)
        with connection.channel() as channel:

            def receive(message: Any) -> None:
                redelivered = bool(message.delivery_info.get("redelivered"))
                os.write(record, line(time.monotonic(), message.properties["message_id"], redelivered))
                message.ack()

            channel.basic_qos(0, PREFETCH, False)
            _kombu.Consumer(channel, [_kombu.Queue(queue, no_declare=True)], on_message=receive).consume()
            while True:
                try:
                    connection.drain_events(timeout=1)
                except TimeoutError:
                    connection.heartbeat_check()


def main(url: str, queue: str, file: str) -> None:
    signal.signal(signal.SIGTERM, _stop)
    errors = _kombu.Connection(url)
    lost = (OperationalError, *errors.connection_errors, *errors.channel_errors)
    record = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    while True:
        try:
            consume(url, queue, record)
        except Stopped:
            return
        except lost:
            time.sleep(RECONNECT_SECONDS)


if __name__ == "__main__":
    main(*sys.argv[1:])
