"""
The consumer: takes messages off a queue, in a process of its own where times count, and tells which came and when.

    python -m bench.arrivals amqp://... queue expected prefetch

It runs until it has as many different messages as it was told, until the message LAST arrives, or until it has heard
nothing for long. Then it writes the numbers and times to standard output, in binary. With a prefetch it acknowledges
what it took, as workers do; with 0 the broker forgets a message as soon as it is sent.
"""

from __future__ import annotations

import contextlib
import struct
import subprocess
import sys
import time
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from amqp import spec

from bench.broker import BODY_FRAME, HEADER_FRAME, METHOD_FRAME, Frames, open_connection
from bench.stage import ROOT, BenchmarkError
from bench.traffic import MESSAGE_ID

READY: Final = b"ready\n"
SILENCE_SECONDS: Final = 20.0
LAST: Final = 999_999_999_999
"""The number of a message that ends the consumer, for producers that do not know beforehand how many they will send."""

_ACK: Final = struct.Struct(">BHIHHQB")  # frame type, channel, size, class, method, tag, and whether all up to it
_ACK_BYTES: Final = 13
_FRAME_END: Final = b"\xce"


@dataclass(frozen=True)
class Arrivals:
    """Which messages came, by their numbers, and when, in nanoseconds of the clock that all processes share."""

    numbers: array[int]
    times: array[int]

    def check(self, expected: int) -> None:
        """BenchmarkError unless it is the messages from 0 to so many. Duplicates pass: at least once is the promise."""
        self.check_exactly(range(expected))

    def check_exactly(self, numbers: Iterable[int]) -> None:
        wanted, got = set(numbers), set(self.numbers)
        if got != wanted:
            raise BenchmarkError(
                f"{len(wanted - got)} of {len(wanted)} messages did not arrive, {len(got - wanted)} were never sent"
            )

    @property
    def duplicates(self) -> int:
        return len(self.numbers) - len(set(self.numbers))


class Consumer:
    """A running consumer."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def result(self, timeout_seconds: float = 600.0) -> Arrivals:
        """Once all have arrived, or none for a while."""
        output, _ = self._process.communicate(timeout=timeout_seconds)
        values = array("q", output)
        half = len(values) // 2
        return Arrivals(values[:half], values[half:])


@contextlib.contextmanager
def consuming(url: str, queue: str, expected: int = LAST, *, prefetch: int = 0) -> Iterator[Consumer]:
    """A consumer that is connected, and ends when it has this many different messages or hears nothing for long."""
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.arrivals", url, queue, str(expected), str(prefetch)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        process_group=0,  # Ctrl-C is for the harness, which then ends this
    )
    try:
        assert process.stdout is not None
        if process.stdout.readline() != READY:
            raise BenchmarkError("the consumer did not start")
        yield Consumer(process)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def take_all(url: str, queue: str, expected: int) -> Arrivals:
    """What is in the queue, when nothing is timed any more: in this process."""
    return Arrivals(*consume(url, queue, expected, 0, lambda: None))


def consume(
    url: str, queue: str, expected: int, prefetch: int, ready: Callable[[], None]
) -> tuple[array[int], array[int]]:
    numbers, times, seen = array("q"), array("q"), set[int]()
    connection = open_connection(url)
    channel = connection.channel()
    if prefetch:
        channel.basic_qos(0, prefetch, False)
    channel.basic_consume(queue, no_ack=not prefetch, callback=None)
    ready()
    frames, socket = Frames(connection), connection.transport.sock
    socket.settimeout(SILENCE_SECONDS)
    number = -1
    with contextlib.suppress(TimeoutError):
        while len(seen) < expected and LAST not in seen:
            arrived = frames.read()
            now = time.monotonic_ns()
            for kind, payload in arrived:
                if kind == HEADER_FRAME:
                    match = MESSAGE_ID.search(payload)
                    number = int(match[1]) if match else -1
                elif kind == BODY_FRAME:
                    numbers.append(number)
                    times.append(now)
                    seen.add(number)
            if prefetch and numbers:  # the tags of a channel count its deliveries
                socket.sendall(_acknowledgement(channel.channel_id, len(numbers)))
    socket.close()
    if LAST in seen:
        position = numbers.index(LAST)
        del numbers[position], times[position]
    return numbers, times


def _acknowledgement(channel: int, deliveries: int) -> bytes:
    """Of all deliveries so far."""
    return _ACK.pack(METHOD_FRAME, channel, _ACK_BYTES, *spec.Basic.Ack, deliveries, True) + _FRAME_END


def main() -> None:
    url, queue, expected, prefetch = sys.argv[1:]

    def ready() -> None:
        sys.stdout.buffer.write(READY)
        sys.stdout.buffer.flush()

    numbers, times = consume(url, queue, int(expected), int(prefetch), ready)
    sys.stdout.buffer.write(numbers.tobytes() + times.tobytes())


if __name__ == "__main__":
    main()
