"""
Start what runs between the shop and the consumer: embedded PostgreSQL, an embedded broker, the relay and the scheduler.

All files are in one temporary directory. Processes and files are removed when the context ends, and also when this
process is killed: a guard process does it then.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import psycopg

from outrider.embedded.postgres import Postgres
from outrider.embedded.process import ProcessGuard, ServerProcess
from outrider.embedded.rabbitmq import RabbitMQ
from outrider.embedded.valkey import Valkey
from outrider.errors import OutboxError
from outrider.operations.setup.apply import apply_step
from outrider.operations.setup.facts import read_facts
from outrider.operations.setup.plan import Target, plan_setup
from outrider.settings.database import ENVIRONMENT_PREFIX
from outrider.storage.connection import connect
from outrider.storage.sql_files import migrations, script
from outrider.storage.store import Store

BrokerKind = Literal["valkey", "rabbitmq"]

# Shorter than the defaults, which spread the load on a broker that has just returned: a viewer of the demo waits.
SHORT_WAITS: Mapping[str, str] = {
    "HOLD_SECONDS": "1",
    "BROKER_OUTAGE_COOLDOWN_SECONDS": "1",
    "POLL_SECONDS": "0.2",
    "BACKOFF_SECONDS": "1",
    "SEND_TIMEOUT_SECONDS": "5",
    "CONNECT_TIMEOUT_SECONDS": "2",
    "SHUTDOWN_TIMEOUT_SECONDS": "5",
}
TARGET = Target(schema="public", publication="outbox", slot="outbox")
SERVICES = ("outrider.cdc_relay", "outrider.retry_scheduler")
STOP_SECONDS = 10.0


class ValkeyWithoutFsync(Valkey):
    """
    Keeps its data when the process is killed, but not when the machine crashes: every command is written before it is
    answered, without fsync. The embedded default calls fsync for every command, which limits consumers to its rate.
    """

    appendfsync = "no"


@dataclass
class Servers:
    dsn: str
    broker: Valkey | RabbitMQ
    services: dict[str, ServerProcess]

    def check(self) -> None:
        """Raise OutboxError if a service has ended."""
        for name, process in self.services.items():
            if process.exit_code is not None:
                last = (process.log_tail(1) or "it wrote nothing").strip()
                raise OutboxError(f"{name} ended with exit status {process.exit_code}: {last}")


@contextlib.contextmanager
def running_servers(broker_kind: BrokerKind) -> Iterator[Servers]:
    directory = Path(tempfile.mkdtemp(prefix="outbox-demo-"))
    directory.chmod(0o711)  # root runs PostgreSQL as another user, which needs access
    guard = ProcessGuard([directory])
    with contextlib.ExitStack() as stack:
        stack.callback(guard.close)
        postgres = stack.enter_context(contextlib.closing(Postgres(base_dir=directory)))
        broker = stack.enter_context(
            contextlib.closing((ValkeyWithoutFsync if broker_kind == "valkey" else RabbitMQ)(base_dir=directory))
        )
        # Not in a `with` block: after Ctrl-C, closing the servers ends their starts.
        pool = ThreadPoolExecutor()
        for started in [pool.submit(server.start) for server in (postgres, broker)]:
            started.result()
        _set_up(postgres.dsn())
        services = {name: _start_service(guard, directory, name, postgres.dsn(), broker.url) for name in SERVICES}
        stack.callback(_stop, services)
        yield Servers(postgres.dsn(), broker, services)


def _set_up(dsn: str) -> None:
    """Do what `outrider setup` does, and create the shop's table."""
    with connect(dsn, application_name="outrider demo") as connection:
        store = Store(connection, TARGET.schema)
        facts = read_facts(store, publication=TARGET.publication, slot=TARGET.slot)
        for step in plan_setup(facts, TARGET, migrations()):
            apply_step(store, step)
        connection.execute(script("demo/shop.sql"))


def _start_service(guard: ProcessGuard, directory: Path, name: str, dsn: str, broker_url: str) -> ServerProcess:
    settings = {**SHORT_WAITS, "DATABASE_URL": dsn, "BROKER_URL": broker_url, "LOG_FORMAT": "json"}
    return guard.start(
        [sys.executable, "-m", name],
        directory=directory,
        environment=service_environment(settings),
        log_file=directory / f"{name}.log",
        stop_signal=signal.SIGTERM,
    )


def service_environment(settings: Mapping[str, object]) -> dict[str, str]:
    """The environment of a service with exactly these settings: other OUTRIDER_* variables are not inherited."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(ENVIRONMENT_PREFIX)}
    return inherited | {f"{ENVIRONMENT_PREFIX}{key.upper()}": str(value) for key, value in settings.items()}


def _stop(services: dict[str, ServerProcess]) -> None:
    for process in services.values():
        process.send_signal(signal.SIGTERM)
    for process in services.values():
        process.end(signal.SIGTERM, STOP_SECONDS)


def is_ready(connection: psycopg.Connection[Any]) -> bool:
    """Whether the relay reads from its slot and the scheduler has registered its presence."""
    row = connection.execute(script("demo/ready.sql", schema=TARGET.schema, slot=TARGET.slot)).fetchone()
    return row is not None and bool(row[0])


def count_rows(connection: psycopg.Connection[Any]) -> tuple[int, int]:
    """The number of committed orders and of pending messages."""
    row = connection.execute(script("demo/counts.sql", schema=TARGET.schema)).fetchone()
    assert row is not None
    return row[0], row[1]
