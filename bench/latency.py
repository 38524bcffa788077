"""
latency_p50_vs_direct, latency_p99_vs_direct: the time from the start of the INSERT to the consumer, through the relay;
over a direct publish of the same messages, each confirmed before the next, to the same consumer.

A direct publish is what an application without an outbox does: kombu's Producer with `confirm_publish`, which Celery
uses as well. The messages are the same as the relay's, including headers and properties.

Both paths are measured in turn, in many short rounds, and the medians count, so that a short disturbance of the machine
spoils few of them. Each round begins with a warm-up that does not count, because a path that was idle while the other
was measured starts with new connections and cold caches.

The consumer is a process of the same kind on both paths. Times are taken from the monotonic clock that all processes
share. Producers are threads with a connection each, as many on both paths as the rate needs: one with files in memory,
several where a commit waits for a disk. If they cannot keep the rate, a note says so. A late start of a send is not
part of its latency.

A message is one INSERT that commits on its own. An application's BEGIN and its other statements come before it, are the
same without an outbox, and are not measured.

Both servers keep their files in memory (a tmpfs) for this, with unchanged durability settings: a commit waits for the
flush of its WAL, a publish for the broker's confirm. On a disk, the flush of one commit often takes longer than
everything else together, and the figure would describe the disk. The raw figures have the result on disk (`on_disk`);
without a tmpfs with enough space, that is the result, with a note.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any, Final, NamedTuple

import kombu
import psycopg

from bench.broker import declare_queue, delete_queue
from bench.figures import Figures, percentile, ratio_of_medians, rounded
from bench.machine import memory_directory
from bench.messages import EVENT_TYPE, HEADERS, body, event_id
from bench.scale import Scale
from bench.servers import BenchServers, OutboxDatabase
from bench.steady_rate import steady_rate
from bench.timed_consumer import LAST, Arrivals, consuming
from outrider.producer import Outbox

QUEUE = "bench-latency"
PRODUCERS_IN_MEMORY = 1
PRODUCERS_ON_DISK = 4
SHARES: Final = {"p50": 0.5, "p99": 0.99}

Send = Callable[[int], None]
Connect = Callable[[], AbstractContextManager[Send]]


def measure(servers: BenchServers, scale: Scale, figures: Figures) -> None:
    parent = memory_directory()
    rounds_on_disk = scale.latency_rounds if parent is None else scale.latency_rounds_on_disk
    on_disk = Comparison.on(servers, scale, rounds_on_disk, PRODUCERS_ON_DISK) if rounds_on_disk else None
    remarks = []
    if parent is not None:
        with BenchServers(parent) as servers_in_memory:
            best = Comparison.on(servers_in_memory, scale, scale.latency_rounds, PRODUCERS_IN_MEMORY)
    else:
        assert on_disk is not None
        best, remarks = on_disk, ["files on disk: there is no tmpfs with enough space"]
    if (rate := best.lowest_rate) < 0.9 * scale.latency_rate:
        remarks.append(f"only {rate:.0f} messages per second were reached")
    for name, share in SHARES.items():
        figures.put(f"latency_{name}_vs_direct", best.ratio(share), "; ".join(remarks) or None)
    figures.raw["latency"] = {
        "seconds": scale.latency_seconds,
        "wanted_rate": scale.latency_rate,
        "files": "on disk" if parent is None else f"in memory ({parent})",
        **best.as_dict(),
        "on_disk": on_disk and on_disk.as_dict(),
    }


@dataclass(frozen=True)
class Comparison:
    """Both paths, measured in turn on the same servers."""

    producers: int
    outbox: list[Run]
    direct: list[Run]

    @classmethod
    def on(cls, servers: BenchServers, scale: Scale, rounds: int, producers: int) -> Comparison:
        url = servers.rabbitmq.url
        comparison = cls(producers, [], [])
        declare_queue(url, QUEUE)
        with servers.outbox() as database, servers.relay(database):
            paths: tuple[tuple[Connect, list[Run]], ...] = (
                (partial(_publish_through_outbox, database), comparison.outbox),
                (partial(_publish_directly, url), comparison.direct),
            )
            for _ in range(rounds):
                for connect, runs in paths:
                    runs.append(Run.of(url, connect, producers, scale))
        delete_queue(url, QUEUE)
        return comparison

    def ratio(self, share: float) -> float:
        ours, theirs = ([run.milliseconds(share) for run in runs] for runs in (self.outbox, self.direct))
        return ratio_of_medians(ours, theirs)

    @property
    def lowest_rate(self) -> float:
        return min(run.rate for run in (*self.outbox, *self.direct))

    def as_dict(self) -> dict[str, Any]:
        return {
            "producers": self.producers,
            "ratios": {name: round(self.ratio(share), 3) for name, share in SHARES.items()},
            "outbox": [run.as_dict() for run in self.outbox],
            "direct": [run.as_dict() for run in self.direct],
        }


class Call(NamedTuple):
    """One send, with its start and end in nanoseconds."""

    number: int
    started: int
    ended: int


class Run:
    """The latencies of one round, after its warm-up."""

    def __init__(self, calls: Sequence[Call], arrivals: Arrivals, warm_up_seconds: float) -> None:
        warm_from = min(call.started for call in calls) + warm_up_seconds * 1e9
        calls = [call for call in calls if call.started >= warm_from]
        backwards = zip(reversed(arrivals.numbers), reversed(arrivals.times), strict=True)
        arrived = dict(backwards)  # the first one of duplicates counts
        self._all = [(arrived[call.number] - call.started) / 1e6 for call in calls]
        self._after_call = [(arrived[call.number] - call.ended) / 1e6 for call in calls]
        started = [call.started for call in calls]
        self.rate = len(calls) / ((max(started) - min(started)) / 1e9)

    @classmethod
    def of(cls, url: str, connect: Connect, producers: int, scale: Scale) -> Run:
        """Send at a steady rate for so long, after a while that does not count."""
        rate, seconds = scale.latency_rate, scale.latency_warm_up_seconds + scale.latency_seconds
        with consuming(url, QUEUE) as consumer:
            with ThreadPoolExecutor(producers) as pool:
                works = [
                    pool.submit(_produce, connect, count(first, producers), rate / producers, seconds)
                    for first in range(producers)
                ]
                calls = [call for work in works for call in work.result()]
            with connect() as send:
                send(LAST)
            arrivals = consumer.result()
        arrivals.check_exactly(call.number for call in calls)
        return cls(calls, arrivals, scale.latency_warm_up_seconds)

    def milliseconds(self, share: float) -> float:
        return percentile(self._all, share)

    def as_dict(self) -> dict[str, object]:
        return {
            "p50_milliseconds": round(self.milliseconds(0.5), 3),
            "p99_milliseconds": round(self.milliseconds(0.99), 3),
            "p50_and_p99_after_the_call_returned": rounded(
                [percentile(self._after_call, share) for share in (0.5, 0.99)], 3
            ),
            "achieved_rate": round(self.rate, 1),
        }


def _produce(connect: Connect, numbers: Iterable[int], rate: float, seconds: float) -> list[Call]:
    calls = []
    with connect() as send:
        for number, _ in zip(numbers, steady_rate(rate, seconds), strict=False):
            started = time.monotonic_ns()
            send(number)
            calls.append(Call(number, started, time.monotonic_ns()))
    return calls


@contextmanager
def _publish_through_outbox(database: OutboxDatabase) -> Iterator[Send]:
    outbox = Outbox("", context=None, outside_transaction="allow")
    with psycopg.connect(database.dsn, autocommit=True) as connection:

        def send(number: int) -> None:
            outbox.publish(
                connection,
                EVENT_TYPE,
                body(number),
                aggregate=("order", number),
                routing_key=QUEUE,
                headers=HEADERS,
                event_id=event_id(number),
            )

        yield send


@contextmanager
def _publish_directly(url: str) -> Iterator[Send]:
    with kombu.Connection(url, transport_options={"confirm_publish": True}) as connection:
        producer = connection.Producer()

        def send(number: int) -> None:
            producer.publish(
                body(number),
                routing_key=QUEUE,
                content_type="application/octet-stream",
                content_encoding="binary",
                headers={"aggregate_type": "order", "aggregate_id": str(number), **HEADERS},
                mandatory=True,
                message_id=str(event_id(number)),
                type=EVENT_TYPE,
                timestamp=int(time.time()),
            )

        yield send
