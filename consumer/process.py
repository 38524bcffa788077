"""
The process of `outrider worker`: settings, signals and telemetry around a Worker. An application that runs a Worker
itself does not need it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from outrider.consumer.discovery import find_consumers, find_database, prepare_imports
from outrider.consumer.worker import Worker
from outrider.runtime.bookkeeping import Bookkeeping
from outrider.runtime.command import tune_garbage_collection
from outrider.runtime.service_connections import open_service_store
from outrider.runtime.service_telemetry import Telemetry
from outrider.runtime.shutdown import Shutdown
from outrider.settings.worker import WorkerSettings
from outrider.telemetry.logs import configure_logging

# They log lost connections at length; the worker logs them in one line.
VERBOSE_LOGGERS = ("aio_pika", "aiormq")


def run_worker(settings: WorkerSettings, modules: Sequence[str]) -> None:
    """Run the consumers of these modules until SIGTERM or SIGINT. Raises OutboxError."""
    shutdown = Shutdown(shutdown_timeout_seconds=settings.shutdown_timeout_seconds)
    with shutdown, Telemetry(settings, service="worker", label="worker") as telemetry:
        _configure_application_logging(settings.log_level)
        worker, database = _make_worker(settings, modules, registry=telemetry.metrics.registry, health=telemetry.health)
        telemetry.serve(worker.status)
        tune_garbage_collection()
        with Bookkeeping(
            partial(open_service_store, settings, "outrider worker"), "worker", settings.name, telemetry.health
        ) as bookkeeping:
            if settings.database_dsn:
                bookkeeping.start()
            asyncio.run(_run(worker, shutdown, database))


def check_worker(settings: WorkerSettings, modules: Sequence[str]) -> str:
    """Check what the worker of these modules needs, and change nothing. Returns a line; raises OutboxError."""
    configure_logging(settings.log_level, settings.log_format)
    _configure_application_logging(settings.log_level)
    worker, _ = _make_worker(settings, modules)
    asyncio.run(worker.check())
    queues = ", ".join(worker.queues)
    return f"ok: every queue, exchange and permission is there for {queues} (bindings cannot be checked over AMQP)"


def _make_worker(settings: WorkerSettings, modules: Sequence[str], **telemetry: Any) -> tuple[Worker, Any]:
    """The worker of these modules, and the database of its inbox."""
    prepare_imports()
    database = _inbox_database(settings)
    worker = Worker(
        broker_url=settings.broker_url.get_secret_value(),
        consumers=find_consumers(modules),
        prefetch=settings.prefetch,
        threads=settings.threads,
        exchange=settings.exchange,
        retry_delays=settings.retry_delays,
        declare=settings.declare,
        database=database,
        schema=settings.schema_name,
        tls=settings.broker_tls,
        connect_timeout_seconds=settings.connect_timeout_seconds,
        shutdown_timeout_seconds=settings.shutdown_timeout_seconds,
        name=settings.name,
        **telemetry,
    )
    return worker, database


async def _run(worker: Worker, shutdown: Shutdown, database: Any) -> None:
    asyncio.get_running_loop().add_reader(shutdown.fileno(), worker.stop)
    try:
        async with _open_pool(database):
            await worker.run()
    finally:
        asyncio.get_running_loop().remove_reader(shutdown.fileno())


@asynccontextmanager
async def _open_pool(database: Any) -> AsyncIterator[None]:
    """Open a psycopg_pool pool of the application for the run: an asynchronous pool needs a running event loop."""
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
    return _connect_per_message(settings.database_dsn) if settings.database_dsn else None


def _connect_per_message(dsn: str) -> Callable[[], Any]:
    """Open a connection for every message. A pool or an engine as inbox_database is faster."""
    import psycopg

    def connect() -> Any:
        try:
            asyncio.get_running_loop()
        except RuntimeError:  # called in a thread, for a plain function
            return psycopg.connect(dsn)
        return psycopg.AsyncConnection.connect(dsn)

    return connect


def _configure_application_logging(level: str) -> None:
    """Apply the log level to the application's loggers too: the handlers are its code."""
    logging.getLogger().setLevel(level.upper())
    for name in VERBOSE_LOGGERS:
        logging.getLogger(name).setLevel(logging.CRITICAL)
