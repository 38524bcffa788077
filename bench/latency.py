"""
latency_p50_vs_direct, latency_p99_vs_direct: from the start of INSERT and commit to the consumer, through the relay;
over a direct publish of the same messages, each confirmed before the next, to the same consumer.

The consumer is a process of its own and of the same kind on both paths; times are taken by the clock that all processes
of the machine share. Several producers, each a thread with a connection, make up the rate together, as many on both
paths: one connection cannot, where a commit waits for the disk. If they cannot keep the rate either, the figures say
so. Lateness before the send is not part of a latency.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import NamedTuple

import amqp
import psycopg

from bench.arrivals import LAST, Arrivals, consuming
from bench.broker import declare_queue, delete_queue, open_connection
from bench.figures import Figures, percentile, ratio_of_medians, rounded
from bench.pace import paced
from bench.scale import Scale
from bench.stage import OutboxDatabase, Stage
from bench.traffic import EVENT_TYPE, HEADERS, body, event_id
from producer import Outbox

QUEUE = "bench-latency"
WARM_UP_SECONDS = 1.0

PRODUCERS = 8

Send = Callable[[int], None]
Connect = Callable[[], AbstractContextManager[Send]]


def measure(stage: Stage, scale: Scale, figures: Figures) -> None:
    url = stage.rabbitmq.url
    through: list[Run] = []
    direct: list[Run] = []
    declare_queue(url, QUEUE)
    with stage.outbox() as database, stage.relay(database):
        for rounds, seconds in ((1, WARM_UP_SECONDS), (scale.rounds, scale.latency_seconds)):
            through, direct = [], []
            for _ in range(rounds):
                through.append(Run.of(url, partial(_through_the_outbox, database), scale.latency_rate, seconds))
                direct.append(Run.of(url, partial(_directly, url), scale.latency_rate, seconds))
    delete_queue(url, QUEUE)
    for name, share in (("p50", 0.5), ("p99", 0.99)):
        ours, theirs = ([run.milliseconds(share) for run in runs] for runs in (through, direct))
        figures.put(f"latency_{name}_vs_direct", ratio_of_medians(ours, theirs))
    figures.raw["latency"] = {
        "seconds": scale.latency_seconds,
        "wanted_rate": scale.latency_rate,
        "outbox": [run.as_dict() for run in through],
        "direct": [run.as_dict() for run in direct],
    }


class Call(NamedTuple):
    """One send, with the times around it, in nanoseconds."""

    number: int
    started: int
    ended: int


class Run:
    """What the producers and the consumer saw."""

    def __init__(self, calls: Sequence[Call], arrivals: Arrivals) -> None:
        arrived = dict(zip(arrivals.numbers, arrivals.times, strict=True))
        self._all = [(arrived[call.number] - call.started) / 1e6 for call in calls]
        self._after_call = [(arrived[call.number] - call.ended) / 1e6 for call in calls]
        started = [call.started for call in calls]
        self._rate = len(calls) / ((max(started) - min(started)) / 1e9)

    @classmethod
    def of(cls, url: str, connect: Connect, rate: float, seconds: float) -> Run:
        """Send at this rate for so long."""
        with consuming(url, QUEUE) as consumer:
            with ThreadPoolExecutor(PRODUCERS) as pool:
                works = [pool.submit(_produce, connect, first, rate, seconds) for first in range(PRODUCERS)]
                calls = [call for work in works for call in work.result()]
            with connect() as send:
                send(LAST)
            arrivals = consumer.result()
        arrivals.check_exactly(call.number for call in calls)
        return cls(calls, arrivals)

    def milliseconds(self, share: float) -> float:
        return percentile(self._all, share)

    def as_dict(self) -> dict[str, object]:
        return {
            "p50_milliseconds": round(self.milliseconds(0.5), 3),
            "p99_milliseconds": round(self.milliseconds(0.99), 3),
            "p50_and_p99_after_the_call_returned": rounded(
                [percentile(self._after_call, share) for share in (0.5, 0.99)], 3
            ),
            "achieved_rate": round(self._rate, 1),
        }


def _produce(connect: Connect, first: int, rate: float, seconds: float) -> list[Call]:
    calls = []
    with connect() as send:
        for turn in paced(rate / PRODUCERS, seconds):
            number = first + turn * PRODUCERS
            started = time.monotonic_ns()
            send(number)
            calls.append(Call(number, started, time.monotonic_ns()))
    return calls


@contextmanager
def _through_the_outbox(database: OutboxDatabase) -> Iterator[Send]:
    outbox = Outbox(context=None)
    with psycopg.connect(database.dsn) as connection:

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
            connection.commit()

        yield send


@contextmanager
def _directly(url: str) -> Iterator[Send]:
    with open_connection(url) as connection, connection.channel() as channel:
        channel.confirm_select()

        def send(number: int) -> None:
            message = amqp.Message(
                body(number),
                content_type="application/json",
                delivery_mode=2,
                message_id=str(event_id(number)),
                type=EVENT_TYPE,
                application_headers=HEADERS,
            )
            channel.basic_publish(message, routing_key=QUEUE, mandatory=True)
            channel.wait(amqp.spec.Basic.Ack)

        yield send
