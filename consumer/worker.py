"""
Worker: consume until stopped, and reconnect when the broker connection is lost.

    worker = Worker(broker_url="amqp://...", consumers=[bill], prefetch=50)
    asyncio.run(worker.run())

`run` raises if the broker cannot be reached at start or if a queue or exchange is missing. After the first connection
it does not give up: it reconnects with growing pauses and declares or checks the topology again. `stop()` (also SIGTERM
and SIGINT, see signals.py) cancels the consumers, returns messages whose handler has not started, and waits for running
handlers up to `shutdown_timeout_seconds`. Messages of handlers that are still running then are not acknowledged: the
broker delivers them again.

Messages are handled concurrently, up to `prefetch` per consumer, without a guaranteed order; plain functions run in
`threads` threads in total. A single worker with `prefetch=1` keeps the order of a queue as long as no message fails.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from prometheus_client import CollectorRegistry

from outrider.consumer.broker_session import BrokerSession
from outrider.consumer.connect import BrokerHosts
from outrider.consumer.declare import check
from outrider.consumer.definition import (
    DEFAULT_PREFETCH,
    DEFAULT_RETRY_DELAYS,
    AnyConsumer,
    check_prefetch,
    parse_retry_delays,
)
from outrider.consumer.handler_runner import HandlerRunner, check_database
from outrider.consumer.logs import use_logger
from outrider.consumer.metrics import ConsumerMetrics
from outrider.consumer.signals import stop_on_signals
from outrider.consumer.threads import Threads
from outrider.consumer.topology import plan_topology
from outrider.errors import BrokerError, SettingsError
from outrider.failures import outage
from outrider.runtime.reconnect_delay import STEADY_SECONDS, reconnect_delay
from outrider.settings.durations import seconds
from outrider.settings.tls import TlsOptions
from outrider.storage.message import DEFAULT_EXCHANGE
from outrider.telemetry.health import Health
from outrider.version import __version__

MONITOR_SECONDS = 1.0
DEPTHS_SECONDS = 15.0


class Worker:
    """
    broker_url                amqp:// or amqps://, as for the other services; `?heartbeat=10` sets its heartbeat
    consumers                 at most one per queue
    prefetch                  messages held at a time, per consumer without a prefetch of its own
    threads                   plain functions that run at a time
    exchange                  exchange of the events, for consumers without an exchange of their own
    retry_delays              for consumers without retry_delays of their own: ("1s", "10s", "1m", "5m") by default
    declare                   create missing queues and exchanges; False: only check that they exist
    database                  for consumers with inbox=True: see outrider.consumer.inbox.transactions
    schema                    the PostgreSQL schema of the outbox tables in that database
    tls                       certificates for amqps://
    connect_timeout_seconds   limit of one connection attempt
    shutdown_timeout_seconds  how long to wait for running handlers at the end; seconds, or text such as "1m"
    registry                  where the metrics are registered, such as prometheus_client.REGISTRY; by default a
                              registry of its own, which nothing exports
    logger                    a structlog logger or a logging.Logger; by default one of structlog's configuration
    """

    def __init__(
        self,
        *,
        broker_url: str,
        consumers: Sequence[AnyConsumer],
        prefetch: int = DEFAULT_PREFETCH,
        threads: int = 8,
        exchange: str = DEFAULT_EXCHANGE,
        retry_delays: Sequence[str] = DEFAULT_RETRY_DELAYS,
        declare: bool = True,
        database: Any = None,
        schema: str = "public",
        tls: TlsOptions | None = None,
        connect_timeout_seconds: float | str = 5.0,
        shutdown_timeout_seconds: float | str = 20.0,
        name: str = "worker",
        registry: CollectorRegistry | None = None,
        logger: Any = None,
        health: Health | None = None,
    ) -> None:
        _check_consumers(consumers)
        check_database(consumers, database)
        delays, prefetch = parse_retry_delays(retry_delays), check_prefetch(prefetch)
        self._consumers = tuple(
            consumer.with_defaults(exchange=exchange, retry_delays=delays, prefetch=prefetch) for consumer in consumers
        )
        self._declare = declare
        self._shutdown_timeout_seconds = seconds(shutdown_timeout_seconds)
        self._name = name
        self._log = use_logger(logger)
        self._metrics = ConsumerMetrics(CollectorRegistry() if registry is None else registry)
        self._metrics.expect(consumer.name for consumer in consumers)
        self._health = health or Health()
        self._broker = BrokerHosts(
            broker_url, connect_timeout_seconds=seconds(connect_timeout_seconds), name=name, tls=tls
        )
        self._threads = Threads(threads)
        self._runner = HandlerRunner(self._threads, database=database, schema=schema, metrics=self._metrics)
        self._stop = asyncio.Event()
        self._session: BrokerSession | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def queues(self) -> list[str]:
        return [consumer.queue for consumer in self._consumers]

    def stop(self) -> None:
        """Request the end of `run`. Call it in the event loop's thread."""
        self._stop.set()

    async def run(self) -> None:
        """Consume until `stop`, SIGTERM or SIGINT. Raises OutboxError if the start fails. Call it once."""
        with stop_on_signals(self.stop):
            await self._run()

    async def check(self) -> None:
        """
        Check that everything that the worker needs exists at the broker and may be used; declare and consume nothing.

        Raises OutboxError that names the first thing that is missing.
        """
        connection = await self._broker.connect()
        try:
            await check(connection, plan_topology(self._consumers))
        finally:
            await connection.close()

    async def _run(self) -> None:
        monitor = asyncio.create_task(self._monitor())
        try:
            failures = 0
            session = await self._open_unless_stopped()
            while session is not None:
                began = time.monotonic()
                await self._wait_for_end_or_stop(session)
                if self._stop.is_set():
                    break
                await self._leave(session)
                failures = 0 if time.monotonic() - began > STEADY_SECONDS else failures + 1
                session = await self._reopen(failures)
        finally:
            await self._shut_down(monitor)
        self._log.info("worker_stopped", **self._metrics.totals())

    def status(self) -> dict[str, object]:
        """The content of /status. May be called from another thread."""
        return {
            "service": "worker",
            "name": self._name,
            "version": __version__,
            "role": self._health.role,
            "queues": self.queues,
            "unfinished": len(self._tasks),
            **self._metrics.totals(),
        }

    # -- connecting ---------------------------------------------------------------------------------------------------

    async def _open_unless_stopped(self) -> BrokerSession | None:
        """The first session. None if the worker is stopped first: connecting can take long."""
        opening, stop = asyncio.create_task(self._open()), asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait({opening, stop}, return_when=asyncio.FIRST_COMPLETED)
            return opening.result() if opening.done() else None
        finally:
            stop.cancel()
            if opening.cancel():
                await asyncio.wait({opening}, timeout=MONITOR_SECONDS)

    async def _open(self) -> BrokerSession:
        connection = await self._broker.connect()
        session = BrokerSession(
            connection,
            self._consumers,
            runner=self._runner,
            metrics=self._metrics,
            tasks=self._tasks,
            log=self._log,
        )
        try:
            await session.open(may_declare=self._declare)
        except BaseException as error:
            await session.close()
            if isinstance(error, BrokerError) or not isinstance(error, Exception):
                raise
            raise outage(error) from error  # the connection was lost meanwhile
        self._session = session
        self._health.set_ready("active")
        self._log.info("worker_active", version=__version__, queues=self.queues)
        return session

    async def _reopen(self, failures: int) -> BrokerSession | None:
        """Open a new session, with as many attempts as it takes. None if the worker is stopped first."""
        while not self._stop.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), reconnect_delay(failures))
                break
            try:
                return await self._open()
            except BrokerError as error:
                failures += 1
                self._health.set_not_ready(str(error))
                self._log.warning("broker_unavailable", error=str(error), failures=failures)
        return None

    async def _leave(self, session: BrokerSession) -> None:
        """Close a session that has ended. If its connection still works, wait for running handlers first."""
        reason = session.ended.result()
        self._health.set_not_ready(reason)
        self._log.warning("session_ended", reason=reason)
        await session.stop_consuming()
        self._threads.withdraw()
        if not session.is_lost and self._tasks:
            await asyncio.wait(self._tasks, timeout=self._shutdown_timeout_seconds)
        self._session = None
        await session.close()

    # -- stopping -----------------------------------------------------------------------------------------------------

    async def _shut_down(self, monitor: asyncio.Task[None]) -> None:
        self._health.set_stopping()
        session = self._session
        if session is not None:
            await session.stop_consuming()
        self._threads.withdraw()
        pending = set(self._tasks)
        if pending:
            self._log.info("waiting_for_handlers", count=len(pending))
            _, pending = await asyncio.wait(pending, timeout=self._shutdown_timeout_seconds)
        if pending:
            self._log.warning("handlers_abandoned", count=len(pending), hint="the broker delivers their messages again")
            for task in pending:
                task.cancel()
            await asyncio.wait(pending, timeout=MONITOR_SECONDS)
        # Before the connection is closed: a cancelled request of the monitor still closes its channel.
        monitor.cancel()
        await asyncio.wait({monitor}, timeout=MONITOR_SECONDS)
        if session is not None:
            await session.close()
        self._threads.close()
        self._metrics.active(0)

    async def _wait_for_end_or_stop(self, session: BrokerSession) -> None:
        stop = asyncio.create_task(self._stop.wait())
        awaited: set[asyncio.Future[Any]] = {session.ended, stop}
        await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()

    async def _monitor(self) -> None:
        """Report that the event loop is alive, and poll the consumers and the depths of the dead-letter queues."""
        depths_at = 0.0
        while True:
            self._health.record_loop()
            session = self._session
            self._metrics.active(0 if session is None else session.consuming())
            if session is not None and time.monotonic() >= depths_at and not self._stop.is_set():
                depths_at = time.monotonic() + DEPTHS_SECONDS
                with suppress(Exception):  # session.ended reports a lost connection
                    async with asyncio.timeout(DEPTHS_SECONDS):
                        depths = await session.dead_letter_depths()
                    for queue, depth in depths.items():
                        self._metrics.dead_letters(queue, depth)
            await asyncio.sleep(MONITOR_SECONDS)


def _check_consumers(consumers: Sequence[AnyConsumer]) -> None:
    if not consumers:
        raise SettingsError("a worker needs at least one consumer")
    names: dict[str, AnyConsumer] = {}
    for consumer in consumers:
        for name in {consumer.queue, consumer.name}:
            if names.setdefault(name, consumer) is not consumer:
                raise SettingsError(f"two consumers have the name or queue {name}: a message would reach one of them")
