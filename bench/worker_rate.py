"""
worker_vs_raw_consume: messages per second of one worker, over a plain aio-pika consumer of the same queue.

Both run in this process, one after the other, with the same prefetch, on a quorum queue that was filled before. The
plain consumer only acknowledges; the worker decodes the body, restores the context, calls an async handler and counts.
The time runs from the first message to the last; both must receive every message once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from statistics import median
from typing import Any

import aio_pika
from aio_pika.abc import AbstractIncomingMessage

from bench.broker import delete_queue, open_connection
from bench.bulk_publisher import BulkPublisher
from bench.figures import Figures, ratio_of_medians, rounded
from bench.messages import event_id
from bench.scale import Scale
from bench.servers import BenchmarkError, BenchServers
from outrider.consumer import Consumer, Worker
from outrider.consumer.topology import dead_letter_queue, plan_topology

QUEUE = "bench-worker"
PREFETCH = 50
WARM_UP_MESSAGES = 1_000
DEADLINE_SECONDS = 300.0


class _Received:
    """The message ids that arrived, and the time from the first to the last."""

    def __init__(self, expected: int) -> None:
        self._expected = {str(event_id(number)) for number in range(expected)}
        self._seen: list[str] = []
        self._began = 0.0
        self.complete = asyncio.Event()

    def add(self, message_id: str) -> None:
        if not self._seen:
            self._began = time.perf_counter()
        self._seen.append(message_id)
        if len(self._seen) == len(self._expected):
            self._seconds = time.perf_counter() - self._began
            self.complete.set()

    def rate(self) -> float:
        if set(self._seen) != self._expected or len(self._seen) != len(self._expected):
            raise BenchmarkError(f"{len(set(self._seen))} of {len(self._expected)} messages arrived")
        return len(self._seen) / self._seconds


Consume = Callable[[str, _Received], Coroutine[Any, Any, None]]


def measure(servers: BenchServers, scale: Scale, figures: Figures) -> None:
    url = servers.rabbitmq.url
    _declare(url)
    ours: list[float] = []
    raw: list[float] = []
    _measure(url, WARM_UP_MESSAGES, _run_worker)
    for _ in range(scale.rounds):
        ours.append(_measure(url, scale.worker_messages, _run_worker))
        raw.append(_measure(url, scale.worker_messages, _run_plain_consumer))
    for queue in (QUEUE, dead_letter_queue(QUEUE)):
        delete_queue(url, queue)
    figures.put("worker_vs_raw_consume", ratio_of_medians(ours, raw))
    figures.raw["worker"] = {
        "messages": scale.worker_messages,
        "prefetch": PREFETCH,
        "worker_messages_per_second": rounded(ours),
        "raw_messages_per_second": rounded(raw),
        "median_worker": round(median(ours)),
        "median_raw": round(median(raw)),
    }


def _declare(url: str) -> None:
    """Declare the queue as a worker does."""
    (queue,) = (each for each in plan_topology([_consumer(lambda _: None)]).queues if each.name == QUEUE)
    with open_connection(url) as connection, connection.channel() as channel:
        channel.queue_declare(QUEUE, durable=True, auto_delete=False, arguments=dict(queue.arguments))


def _measure(url: str, messages: int, consume: Consume) -> float:
    received = _Received(messages)
    publisher = BulkPublisher(url, QUEUE, messages)
    publisher.run()
    publisher.close()
    asyncio.run(consume(url, received))
    return received.rate()


def _consumer(add: Any) -> Consumer[..., Any]:
    async def handle(order: dict[str, Any], event_id: str) -> None:  # noqa: ARG001 - decoding is measured
        add(event_id)

    return Consumer(handle, queue=QUEUE)


async def _run_worker(url: str, received: _Received) -> None:
    worker = Worker(broker_url=url, consumers=[_consumer(received.add)], prefetch=PREFETCH)
    running = asyncio.create_task(worker.run())
    async with asyncio.timeout(DEADLINE_SECONDS):
        await received.complete.wait()
    worker.stop()
    await running


async def _run_plain_consumer(url: str, received: _Received) -> None:
    async def receive(message: AbstractIncomingMessage) -> None:
        received.add(message.message_id or "")
        await message.ack()

    async with await aio_pika.connect(url) as connection:
        channel = await connection.channel(publisher_confirms=False)
        await channel.set_qos(prefetch_count=PREFETCH)
        queue = await channel.get_queue(QUEUE, ensure=False)
        tag = await queue.consume(receive)
        async with asyncio.timeout(DEADLINE_SECONDS):
            await received.complete.wait()
        await queue.cancel(tag)
