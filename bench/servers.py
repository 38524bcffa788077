"""
BenchServers: a private PostgreSQL, a private RabbitMQ, databases with an outbox, and the services of a benchmark.

Both servers run with their default durability: commits wait for the disk, queues are durable. No process is pinned to a
processor. All processes and files are removed at the end. With `parent` the files can be kept on a tmpfs, where a flush
costs nothing.
"""

from __future__ import annotations

import contextlib
import itertools
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, LiteralString

import psycopg
from psycopg import sql

from outrider.demo.servers import service_environment
from outrider.embedded.postgres import Postgres
from outrider.embedded.process import ProcessGuard, ServerProcess
from outrider.embedded.rabbitmq import RabbitMQ
from outrider.operations.setup.apply import apply_step
from outrider.operations.setup.facts import read_facts
from outrider.operations.setup.plan import Target, plan_setup
from outrider.storage.connection import connect
from outrider.storage.sql_files import migrations
from outrider.storage.store import Store

ROOT = Path(__file__).parents[1]
STOP_SECONDS = 30.0
HANDOVER_SECONDS = 3600.0
"""Longer than any benchmark: the measured rows must stay with the relay."""


class BenchmarkError(Exception):
    """An invalid measurement: messages are missing, a service ended, a deadline passed."""


@dataclass(frozen=True)
class OutboxDatabase:
    dsn: str
    slot: str

    def connect(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self.dsn, autocommit=True)

    def value(self, query: LiteralString, parameters: dict[str, object] | None = None) -> Any:
        with self.connect() as connection:
            row = connection.execute(query, parameters).fetchone()
        return None if row is None else row[0]

    def drop_slot(self) -> None:
        """Also if the server still has the connection of a killed reader."""
        one: dict[str, object] = {"slot": self.slot}
        self.value("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = %(slot)s", one)
        wait_until(
            lambda: not self.value("SELECT active FROM pg_replication_slots WHERE slot_name = %(slot)s", one),
            None,
            "the slot is still in use",
            deadline_seconds=STOP_SECONDS,
        )
        self.value(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %(slot)s", one
        )


class BenchServers:
    def __init__(self, parent: Path | None = None) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="outbox-bench-", dir=parent))
        self.directory.chmod(0o711)  # root runs PostgreSQL as another user, which needs access
        self._guard = ProcessGuard([self.directory])
        self.postgres = Postgres(base_dir=self.directory)
        self.rabbitmq = RabbitMQ(base_dir=self.directory)
        self._numbers = itertools.count(1)

    def __enter__(self) -> BenchServers:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Start the servers that do not run: a failed measurement may have left one stopped."""
        for server in (self.postgres, self.rabbitmq):
            if not server.is_running:
                server.start()

    def close(self) -> None:
        with contextlib.ExitStack() as stack:
            for resource in (self._guard, self.postgres, self.rabbitmq):
                stack.callback(resource.close)

    @contextlib.contextmanager
    def database(self, name: str) -> Iterator[str]:
        """An empty database, dropped at the end."""
        with psycopg.connect(self.postgres.dsn(), autocommit=True) as connection:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        try:
            yield self.postgres.dsn(name)
        finally:
            with psycopg.connect(self.postgres.dsn(), autocommit=True) as connection:
                connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))

    @contextlib.contextmanager
    def outbox(self, *, handover_seconds: float = HANDOVER_SECONDS) -> Iterator[OutboxDatabase]:
        """A database with what `outrider setup` creates. Its slot is dropped at the end: it would retain WAL."""
        name = f"bench_{next(self._numbers)}"
        target = Target(schema="public", publication="outbox", slot=name, handover_seconds=handover_seconds)
        with self.database(name) as dsn:
            with connect(dsn, application_name="bench") as connection:
                store = Store(connection, target.schema)
                facts = read_facts(store, publication=target.publication, slot=target.slot)
                for step in plan_setup(facts, target, migrations()):
                    apply_step(store, step)
            database = OutboxDatabase(dsn, name)
            try:
                yield database
            finally:
                database.drop_slot()

    @contextlib.contextmanager
    def service(self, module: str, database: OutboxDatabase, **settings: object) -> Iterator[ServerProcess]:
        """A running cdc_relay or retry_scheduler, stopped with SIGTERM at the end."""
        given = {"database_url": database.dsn, "broker_url": self.rabbitmq.url, "slot": database.slot, **settings}
        environment = service_environment({"log_format": "json", **given})
        process = self.program([sys.executable, "-m", module], {**environment, "PYTHONPATH": str(ROOT)})
        try:
            yield process
        finally:
            process.end(signal.SIGTERM, STOP_SECONDS)

    @contextlib.contextmanager
    def relay(self, database: OutboxDatabase, **settings: object) -> Iterator[ServerProcess]:
        """A relay that reads from its slot."""
        with self.service("outrider.cdc_relay", database, **settings) as process:
            active: LiteralString = "SELECT active FROM pg_replication_slots WHERE slot_name = %(slot)s"
            wait_until(
                lambda: bool(database.value(active, {"slot": database.slot})), process, "the relay does not read"
            )
            yield process

    @contextlib.contextmanager
    def scheduler(self, database: OutboxDatabase, **settings: object) -> Iterator[ServerProcess]:
        """A scheduler that is connected to the database and the broker."""
        with self.service("outrider.retry_scheduler", database, **settings) as process:
            wait_until(
                lambda: "scheduler_active" in process.log_file.read_text(errors="replace"),
                process,
                "the scheduler does not start",
            )
            yield process

    def program(self, command: list[str], environment: dict[str, str]) -> ServerProcess:
        """Start any program; it ends with the servers at the latest."""
        return self._guard.start(
            command,
            directory=self.directory,
            environment=environment,
            log_file=self.directory / f"program-{next(self._numbers)}.log",
            stop_signal=signal.SIGKILL,
        )


def wait_until(
    condition: Callable[[], bool],
    process: ServerProcess | None,
    complaint: str,
    *,
    deadline_seconds: float = 600.0,
    pause_seconds: float = 0.02,
) -> None:
    """Wait for a condition. Raises BenchmarkError after the deadline, or if the process has ended."""
    deadline = time.monotonic() + deadline_seconds
    checks = 0
    while not condition():
        checks += 1
        # The exit code needs a request to the guard process: not at every check.
        if process is not None and checks % 50 == 0 and process.exit_code is not None:
            raise BenchmarkError(f"{complaint}: it ended with {process.exit_code}\n{process.log_tail()}")
        if time.monotonic() > deadline:
            log = "" if process is None else f"\n{process.log_tail()}"
            raise BenchmarkError(f"{complaint} (within {deadline_seconds:g} s){log}")
        time.sleep(pause_seconds)
