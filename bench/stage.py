"""
What a measurement runs on: a private PostgreSQL, a private RabbitMQ, outboxes of their own, and the services.

Both servers run with their defaults for durability: commits wait for the disk, queues are durable. Nothing is pinned
to a processor. All processes and files are gone when the stage is closed. A stage can be asked to keep its files in a
directory in memory: the servers do the same as ever, only that a flush costs nothing there.
"""

from __future__ import annotations

import contextlib
import itertools
import os
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

from outrider.embedded import Postgres, RabbitMQ
from outrider.embedded.process import ProcessGuard, ServerProcess
from outrider.operations.setup import Target, apply_step, plan_setup, read_facts
from outrider.settings.models import ENVIRONMENT_PREFIX
from outrider.storage.sql_files import migrations
from outrider.storage.store import Store, connect

ROOT = Path(__file__).parents[1]
STOP_SECONDS = 30.0
HANDOVER_SECONDS = 3600.0
"""Rows stay the relay's for as long as a benchmark can take: what is measured must not pass to the scheduler."""


class BenchmarkError(Exception):
    """A measurement that cannot be believed: messages are missing, a service ended, a deadline passed."""


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
        """Also from under a reader that was killed, whose connection the server still holds."""
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


class Stage:
    def __init__(self, parent: Path | None = None) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="outbox-bench-", dir=parent))
        self.directory.chmod(0o711)  # root runs PostgreSQL as another user, who must get through
        self._guard = ProcessGuard([self.directory])
        self.postgres = Postgres(base_dir=self.directory)
        self.rabbitmq = RabbitMQ(base_dir=self.directory)
        self._numbers = itertools.count(1)

    def __enter__(self) -> Stage:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Start what does not run: a measurement that failed may have left a server stopped."""
        for server in (self.postgres, self.rabbitmq):
            if not server.is_running:
                server.start()

    def close(self) -> None:
        with contextlib.ExitStack() as stack:
            for part in (self._guard, self.postgres, self.rabbitmq):
                stack.callback(part.close)

    @contextlib.contextmanager
    def database(self, name: str) -> Iterator[str]:
        """An empty database; gone afterwards."""
        with psycopg.connect(self.postgres.dsn(), autocommit=True) as connection:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        try:
            yield self.postgres.dsn(name)
        finally:
            with psycopg.connect(self.postgres.dsn(), autocommit=True) as connection:
                connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))

    @contextlib.contextmanager
    def outbox(self, *, handover_seconds: float = HANDOVER_SECONDS) -> Iterator[OutboxDatabase]:
        """A database as `outrider setup` makes it; its slot goes with it, so that it holds no WAL for anybody."""
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
        """A running cdc_relay or retry_scheduler; stopped with SIGTERM afterwards."""
        values = {
            "DATABASE_URL": database.dsn,
            "BROKER_URL": self.rabbitmq.url,
            "SLOT": database.slot,
            "LOG_FORMAT": "json",
            **{name.upper(): str(value) for name, value in settings.items()},
        }
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(ENVIRONMENT_PREFIX)}
        process = self.program(
            [sys.executable, "-m", module],
            {**inherited, "PYTHONPATH": str(ROOT), **{ENVIRONMENT_PREFIX + key: text for key, text in values.items()}},
        )
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
        """A scheduler that has reached the database and the broker."""
        with self.service("outrider.retry_scheduler", database, **settings) as process:
            wait_until(
                lambda: "scheduler_active" in process.log_file.read_text(errors="replace"),
                process,
                "the scheduler does not start",
            )
            yield process

    def program(self, command: list[str], environment: dict[str, str]) -> ServerProcess:
        """Start any program; it ends with the stage at the latest."""
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
    """Wait for a condition while a process lives."""
    deadline = time.monotonic() + deadline_seconds
    looks = 0
    while not condition():
        looks += 1
        # Asking the guard costs a round trip between processes: not at every look.
        if process is not None and looks % 50 == 0 and process.exit_code is not None:
            raise BenchmarkError(f"{complaint}: it ended with {process.exit_code}\n{process.log_tail()}")
        if time.monotonic() > deadline:
            log = "" if process is None else f"\n{process.log_tail()}"
            raise BenchmarkError(f"{complaint} (within {deadline_seconds:g} s){log}")
        time.sleep(pause_seconds)
