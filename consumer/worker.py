"""
Worker: consume until told to stop, and come back by itself when the broker does.

    worker = Worker(broker_url="amqp://...", consumers=[bill], prefetch=50)
    asyncio.run(worker.run())

At start a broker that cannot be reached, or lacks something, is an error for the operator. Once it has been connected
the worker never gives up: it connects again with growing pauses, and sees to the topology again. `stop()` (SIGTERM in
`outrider worker`) stops consuming, gives back what was not begun and waits for what was, up to
`shutdown_timeout_seconds`; what is not done by then is left unacknowledged, so that the broker delivers it again.

Messages are handled side by side, up to `prefetch` per consumer, and in no particular order; plain functions up to
`threads` at a time in all. A consumer with `prefetch=1` on the only worker keeps the order of its queue, as long as
nothing fails.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from prometheus_client import CollectorRegistry

from outrider.consumer.broker_session import BrokerSession
from outrider.consumer.connect import Broker
from outrider.consumer.definition import AnyConsumer, check_prefetch
from outrider.consumer.handling import Handling, check_database
from outrider.consumer.metrics import ConsumerMetrics
from outrider.consumer.threads import Threads
from outrider.consumer.topology import DEFAULT_EXCHANGE
from outrider.errors import BrokerError, SettingsError
from outrider.failures import outage
from outrider.runtime.reconnect_delay import reconnect_delay
from outrider.settings.tls import TlsOptions
from outrider.telemetry.health import Health
from outrider.telemetry.logs import get_logger
from outrider.version import __version__

BEAT_SECONDS = 1.0
DEPTHS_SECONDS = 15.0
SOUND_SECONDS = 30.0
"""A connection that lasted so long was a good one: the next pause is short again."""

log = get_logger(__name__)


class Worker:
    """
    broker_url                the broker, as for the other services: amqp:// or amqps://
    consumers                 what to consume; at most one per queue
    prefetch                  messages held at a time, per consumer that does not say otherwise
    threads                   plain functions that run at a time
    exchange                  where the events of consumers are published that name no exchange
    declare                   make queues and exchanges that are missing; False: only check that they are there
    database                  for consumers with inbox=True: see outrider.consumer.inbox.transactions
    schema                    the PostgreSQL schema of the outbox tables there
    tls                       certificates for amqps://
    connect_timeout_seconds   for one attempt
    shutdown_timeout_seconds  how long running handlers are waited for
    """

    def __init__(
        self,
        *,
        broker_url: str,
        consumers: Sequence[AnyConsumer],
        prefetch: int = 50,
        threads: int = 8,
        exchange: str = DEFAULT_EXCHANGE,
        declare: bool = True,
        database: Any = None,
        schema: str = "public",
        tls: TlsOptions | None = None,
        connect_timeout_seconds: float = 5.0,
        shutdown_timeout_seconds: float = 20.0,
        name: str = "worker",
        metrics: ConsumerMetrics | None = None,
        health: Health | None = None,
    ) -> None:
        _check_consumers(consumers)
        check_database(consumers, database)
        self._consumers = tuple(consumers)
        self._prefetch = check_prefetch(prefetch)
        self._exchange = exchange
        self._declare = declare
        self._shutdown_timeout_seconds = shutdown_timeout_seconds
        self._name = name
        self._metrics = metrics or ConsumerMetrics(CollectorRegistry())
        self._metrics.expect(consumer.name for consumer in consumers)
        self._health = health or Health()
        self._broker = Broker(broker_url, connect_timeout_seconds=connect_timeout_seconds, name=name, tls=tls)
        self._threads = Threads(threads)
        self._handling = Handling(self._threads, database=database, schema=schema, observe=self._metrics.handler_ran)
        self._stop = asyncio.Event()
        self._session: BrokerSession | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def stop(self) -> None:
        """Ask for the end. From the event loop's thread."""
        self._stop.set()

    async def run(self) -> None:
        """Until `stop`. Raises OutboxError for what cannot work; once."""
        beat = asyncio.create_task(self._beat())
        try:
            failures = 0
            session: BrokerSession | None = await self._open()
            while session is not None:
                began = time.monotonic()
                await self._first_of(session.ended)
                if self._stop.is_set():
                    break
                await self._lose(session)
                failures = 0 if time.monotonic() - began > SOUND_SECONDS else failures + 1
                session = await self._reopen(failures)
        finally:
            await self._end(beat)
        log.info("worker_stopped", **self._metrics.totals())

    def status(self) -> dict[str, object]:
        """What /status shows. May be called from another thread."""
        return {
            "service": "worker",
            "name": self._name,
            "version": __version__,
            "role": self._health.role,
            "queues": [consumer.queue for consumer in self._consumers],
            "in_hand": len(self._tasks),
            **self._metrics.totals(),
        }

    # -- connecting ---------------------------------------------------------------------------------------------------

    async def _open(self) -> BrokerSession:
        connection = await self._broker.connect()
        session = BrokerSession(
            connection,
            self._consumers,
            prefetch=self._prefetch,
            handling=self._handling,
            metrics=self._metrics,
            tasks=self._tasks,
        )
        try:
            await session.open(events_exchange=self._exchange, may_declare=self._declare)
        except BaseException as error:
            await session.close()
            if isinstance(error, BrokerError) or not isinstance(error, Exception):
                raise
            raise outage(error) from error  # the connection went while we were at it
        self._session = session
        self._health.ready("active")
        log.info("worker_active", version=__version__, queues=[consumer.queue for consumer in self._consumers])
        return session

    async def _reopen(self, failures: int) -> BrokerSession | None:
        """A new session, however long it takes; None when asked to stop."""
        while not self._stop.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), reconnect_delay(failures))
                break
            try:
                return await self._open()
            except BrokerError as error:
                failures += 1
                self._health.not_ready(str(error))
                log.warning("broker_unavailable", error=str(error), failures=failures)
        return None

    async def _lose(self, session: BrokerSession) -> None:
        """Leave a session that has ended by itself. Where its connection still works, running handlers are awaited."""
        reason = session.ended.result()
        self._health.not_ready(reason)
        log.warning("session_ended", reason=reason)
        await session.stop_consuming()
        self._threads.withdraw()
        if not session.is_lost and self._tasks:
            await asyncio.wait(self._tasks, timeout=self._shutdown_timeout_seconds)
        self._session = None
        await session.close()

    # -- stopping -----------------------------------------------------------------------------------------------------

    async def _end(self, beat: asyncio.Task[None]) -> None:
        self._health.stopping()
        session = self._session
        if session is not None:
            await session.stop_consuming()
        self._threads.withdraw()
        pending = set(self._tasks)
        if pending:
            log.info("waiting_for_handlers", count=len(pending))
            _, pending = await asyncio.wait(pending, timeout=self._shutdown_timeout_seconds)
        if pending:
            log.warning("handlers_abandoned", count=len(pending), hint="their messages are delivered again")
            for task in pending:
                task.cancel()
            await asyncio.wait(pending, timeout=BEAT_SECONDS)
        # Before the connection: a question to the broker that is cancelled wants to say so on it.
        beat.cancel()
        await asyncio.wait({beat}, timeout=BEAT_SECONDS)
        if session is not None:
            await session.close()
        self._threads.close()
        self._metrics.active(0)

    async def _first_of(self, awaited: asyncio.Future[Any]) -> None:
        """Wait for this, or for the request to stop."""
        stop = asyncio.create_task(self._stop.wait())
        await asyncio.wait({awaited, stop}, return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()

    async def _beat(self) -> None:
        """Show that the loop turns, and look at what nobody tells us."""
        depths_at = 0.0
        while True:
            self._health.beat()
            session = self._session
            self._metrics.active(0 if session is None else session.consuming())
            if session is not None and time.monotonic() >= depths_at and not self._stop.is_set():
                depths_at = time.monotonic() + DEPTHS_SECONDS
                with suppress(Exception):  # a lost connection is noticed elsewhere
                    async with asyncio.timeout(DEPTHS_SECONDS):
                        depths = await session.dead_letter_depths()
                    for queue, depth in depths.items():
                        self._metrics.dead_letters(queue, depth)
            await asyncio.sleep(BEAT_SECONDS)


def _check_consumers(consumers: Sequence[AnyConsumer]) -> None:
    if not consumers:
        raise SettingsError("a worker needs at least one consumer")
    names: dict[str, AnyConsumer] = {}
    for consumer in consumers:
        for name in {consumer.queue, consumer.name}:
            if names.setdefault(name, consumer) is not consumer:
                raise SettingsError(f"two consumers are called {name}, or have this queue: messages would go to either")
