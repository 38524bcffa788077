"""
A consumer in a process of its own: takes messages from a queue and reports their numbers and arrival times.

    python -m bench.timed_consumer amqp://... queue expected prefetch

It runs until it has the expected number of different messages, until the message LAST arrives, or until nothing arrived
for SILENCE_SECONDS. Then it writes the numbers and times to standard output, in binary. With a prefetch it acknowledges
messages, as workers do; with 0 the broker removes a message as soon as it is sent.
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
from bench.messages import MESSAGE_ID
from bench.servers import ROOT, BenchmarkError

READY: Final = b"ready\n"
SILENCE_SECONDS: Final = 20.0
LAST: Final = 999_999_999_999
"""The number of a message that ends the consumer, if the number of messages is not known beforehand."""

_ACK: Final = struct.Struct(">BHIHHQB")  # frame type, channel, size, class, method, tag, multiple
_ACK_BYTES: Final = 13
_FRAME_END: Final = b"\xce"


@dataclass(frozen=True)
class Arrivals:
    """The numbers of the messages and their arrival times, in nanoseconds of the monotonic clock."""

    numbers: array[int]
    times: array[int]

    def check(self, expected: int) -> None:
        """Raise BenchmarkError unless messages 0 to expected - 1 arrived. Duplicates are allowed (at least once)."""
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


class TimedConsumer:
    """A running consumer process."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def result(self, timeout_seconds: float = 600.0) -> Arrivals:
        """Wait for the end of the process and return the arrivals."""
        output, _ = self._process.communicate(timeout=timeout_seconds)
        values = array("q", output)
        half = len(values) // 2
        return Arrivals(values[:half], values[half:])


@contextlib.contextmanager
def consuming(url: str, queue: str, expected: int = LAST, *, prefetch: int = 0) -> Iterator[TimedConsumer]:
    """A connected consumer; ends after `expected` different messages or a long silence."""
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.timed_consumer", url, queue, str(expected), str(prefetch)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        process_group=0,  # Ctrl-C goes to the benchmark, which then ends this process
    )
    try:
        assert process.stdout is not None
        if process.stdout.readline() != READY:
            raise BenchmarkError("the consumer did not start")
        yield TimedConsumer(process)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def take_all(url: str, queue: str, expected: int) -> Arrivals:
    """Take the messages of the queue in this process, after the measurement."""
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
            if prefetch and numbers:  # a delivery tag is the number of deliveries on the channel
                socket.sendall(_acknowledgement(channel.channel_id, len(numbers)))
    socket.close()
    if LAST in seen:
        position = numbers.index(LAST)
        del numbers[position], times[position]
    return numbers, times


def _acknowledgement(channel: int, deliveries: int) -> bytes:
    """Acknowledges all deliveries so far."""
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
