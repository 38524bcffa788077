"""
The process of `outrider worker`: settings, signals and telemetry around a Worker. Applications that run a Worker
themselves do not need it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager
from typing import Any

from outrider.consumer.discovery import find_consumers, find_database, prepare_imports
from outrider.consumer.metrics import ConsumerMetrics
from outrider.consumer.presence import WorkerPresence
from outrider.consumer.worker import Worker
from outrider.runtime.command import spare_the_collector
from outrider.runtime.service_telemetry import Telemetry
from outrider.runtime.shutdown import Shutdown
from outrider.settings.models import WorkerSettings

# They tell at length of connections that are lost and found again; so do we, in a line.
CHATTY = ("aio_pika", "aiormq")


def run_worker(settings: WorkerSettings, modules: Sequence[str]) -> None:
    """Consume with the consumers of these modules until SIGTERM or SIGINT. Raises OutboxError."""
    with Shutdown() as shutdown, Telemetry(settings, service="worker", label="worker") as telemetry:
        _let_applications_log(settings.log_level)
        prepare_imports()
        worker = Worker(
            broker_url=settings.broker_url.get_secret_value(),
            consumers=find_consumers(modules),
            prefetch=settings.prefetch,
            threads=settings.threads,
            exchange=settings.exchange,
            declare=settings.declare,
            database=(database := _inbox_database(settings)),
            schema=settings.schema_name,
            tls=settings.broker_tls,
            connect_timeout_seconds=settings.connect_timeout_seconds,
            shutdown_timeout_seconds=settings.shutdown_timeout_seconds,
            name=settings.name,
            metrics=ConsumerMetrics(telemetry.metrics.registry),
            health=telemetry.health,
        )
        telemetry.serve(worker.status)
        spare_the_collector()
        with ExitStack() as stack:
            if dsn := settings.database_dsn:
                presence = WorkerPresence(
                    dsn,
                    schema=settings.schema_name,
                    name=settings.name,
                    is_active=lambda: telemetry.health.role == "active",
                )
                stack.enter_context(presence)
            asyncio.run(_run(worker, shutdown, database))


async def _run(worker: Worker, shutdown: Shutdown, database: Any) -> None:
    asyncio.get_running_loop().add_reader(shutdown.fileno(), worker.stop)
    try:
        async with _opened(database):
            await worker.run()
    finally:
        asyncio.get_running_loop().remove_reader(shutdown.fileno())


@asynccontextmanager
async def _opened(database: Any) -> AsyncIterator[None]:
    """A pool of psycopg_pool that a module made is opened and closed here: it needs a running loop for that."""
    if type(database).__module__.partition(".")[0] != "psycopg_pool":
        yield
    elif hasattr(database, "__aenter__"):
        async with database:
            yield
    else:
        with database:
            yield


def _inbox_database(settings: WorkerSettings) -> Any:
    if settings.inbox_database is not None:
        return find_database(settings.inbox_database)
    return _connecting(settings.database_dsn) if settings.database_dsn else None


def _connecting(dsn: str) -> Callable[[], Any]:
    """A connection per message. Plain, and slow: a pool or an engine as inbox_database is faster."""
    import psycopg

    def connect() -> Any:
        try:
            asyncio.get_running_loop()
        except RuntimeError:  # a thread for plain functions
            return psycopg.connect(dsn)
        return psycopg.AsyncConnection.connect(dsn)

    return connect


def _let_applications_log(level: str) -> None:
    """Handlers are the application's code: what it logs counts as much as what we do."""
    logging.getLogger().setLevel(level.upper())
    for name in CHATTY:
        logging.getLogger(name).setLevel(logging.CRITICAL)
