"""
latency_p50_vs_direct, latency_p99_vs_direct: from the start of INSERT and commit to the consumer, through the relay;
over a direct publish of the same messages, each confirmed before the next, to the same consumer.

Directly means as an application would without an outbox: by kombu's Producer, with `confirm_publish`, to which Celery's
calls come down as well. The messages are the same as the relay's, headers and properties included.

Both paths are measured in turn, in many short rounds, of which the medians count: what disturbs a shared machine for a
moment spoils few of them. Each round begins with a while that does not count: a path that has rested while the other
was measured is not what it is in steady use, with its connections new and its processes cold.

The consumer is a process of its own and of the same kind on both paths; times are taken by the clock that all processes
of the machine share. As many producers as it takes, each a thread with a connection and as many on both paths, make up
the rate together: one with files in memory, several where a commit waits for a disk. If they cannot keep the rate
either, the figures say so. Lateness before the send is not part of a latency.

A message is one INSERT that commits by itself. An application's BEGIN and its other statements are not measured: they
come before the message, and are the same without an outbox.

Both servers keep their files in memory (a tmpfs) for this, with their settings for durability as they are: a commit
waits for the flush of its WAL, a publish for the broker's confirm. On a disk the flush of one commit is often longer
than everything else together, and the figure would tell about the disk. What it is on the disk is among the raw figures
(`on_disk`); where there is no tmpfs with room, that is the result, with a note.
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

from bench.arrivals import LAST, Arrivals, consuming
from bench.broker import declare_queue, delete_queue
from bench.figures import Figures, percentile, ratio_of_medians, rounded
from bench.machine import memory_directory
from bench.pace import paced
from bench.scale import Scale
from bench.stage import OutboxDatabase, Stage
from bench.traffic import EVENT_TYPE, HEADERS, body, event_id
from outrider.producer import Outbox

QUEUE = "bench-latency"
PRODUCERS_IN_MEMORY = 1
PRODUCERS_ON_DISK = 4
SHARES: Final = {"p50": 0.5, "p99": 0.99}

Send = Callable[[int], None]
Connect = Callable[[], AbstractContextManager[Send]]


def measure(stage: Stage, scale: Scale, figures: Figures) -> None:
    parent = memory_directory()
    rounds_on_disk = scale.latency_rounds if parent is None else scale.latency_rounds_on_disk
    on_disk = Comparison.on(stage, scale, rounds_on_disk, PRODUCERS_ON_DISK) if rounds_on_disk else None
    remarks = []
    if parent is not None:
        with Stage(parent) as stage_in_memory:
            best = Comparison.on(stage_in_memory, scale, scale.latency_rounds, PRODUCERS_IN_MEMORY)
    else:
        assert on_disk is not None
        best, remarks = on_disk, ["files on disk: there is no tmpfs with room"]
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
    """Both paths in turn, on the same servers."""

    producers: int
    through: list[Run]
    direct: list[Run]

    @classmethod
    def on(cls, stage: Stage, scale: Scale, rounds: int, producers: int) -> Comparison:
        url = stage.rabbitmq.url
        comparison = cls(producers, [], [])
        declare_queue(url, QUEUE)
        with stage.outbox() as database, stage.relay(database):
            ways: tuple[tuple[Connect, list[Run]], ...] = (
                (partial(_through_the_outbox, database), comparison.through),
                (partial(_directly, url), comparison.direct),
            )
            for _ in range(rounds):
                for connect, runs in ways:
                    runs.append(Run.of(url, connect, producers, scale))
        delete_queue(url, QUEUE)
        return comparison

    def ratio(self, share: float) -> float:
        ours, theirs = ([run.milliseconds(share) for run in runs] for runs in (self.through, self.direct))
        return ratio_of_medians(ours, theirs)

    @property
    def lowest_rate(self) -> float:
        return min(run.rate for run in (*self.through, *self.direct))

    def as_dict(self) -> dict[str, Any]:
        return {
            "producers": self.producers,
            "ratios": {name: round(self.ratio(share), 3) for name, share in SHARES.items()},
            "outbox": [run.as_dict() for run in self.through],
            "direct": [run.as_dict() for run in self.direct],
        }


class Call(NamedTuple):
    """One send, with the times around it, in nanoseconds."""

    number: int
    started: int
    ended: int


class Run:
    """What the producers and the consumer saw, once they were warm."""

    def __init__(self, calls: Sequence[Call], arrivals: Arrivals, warm_up_seconds: float) -> None:
        warm_from = min(call.started for call in calls) + warm_up_seconds * 1e9
        calls = [call for call in calls if call.started >= warm_from]
        backwards = zip(reversed(arrivals.numbers), reversed(arrivals.times), strict=True)
        arrived = dict(backwards)  # of duplicates the first one counts
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
        for number, _ in zip(numbers, paced(rate, seconds), strict=False):
            started = time.monotonic_ns()
            send(number)
            calls.append(Call(number, started, time.monotonic_ns()))
    return calls


@contextmanager
def _through_the_outbox(database: OutboxDatabase) -> Iterator[Send]:
    outbox = Outbox(context=None, outside_transaction="allow")
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
def _directly(url: str) -> Iterator[Send]:
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
