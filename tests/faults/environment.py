"""
The environment of a run: servers, proxies in front of them, the tables, the queues, and the processes.

Relays and schedulers connect to PostgreSQL and RabbitMQ through separate proxies, so that one kind of service can be
disconnected alone. Producers, consumers and the checker connect directly. All timeouts are short, so that the services
recover from a fault within seconds.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import kombu
import psycopg

from outrider.embedded.postgres import Postgres
from outrider.embedded.process import ProcessGuard
from outrider.embedded.rabbitmq import RabbitMQ
from outrider.storage.sql_files import script
from tests.faults.processes import ProcessGroup, SupervisedProcess
from tests.faults.producer import EXCHANGE, FATAL, MAX_MESSAGE_BYTES, QUEUES, TABLES
from tests.faults.small_disk import SmallDisk
from tests.fixtures.proxy import FaultProxy

_kombu: Any = kombu  # its classes are untyped

SLOT = PUBLICATION = "outbox"
DATABASE = "faults"
HANDOVER = "6 seconds"
TIMES = {
    "send_timeout_seconds": 3,
    "connect_timeout_seconds": 2,
    "shutdown_timeout_seconds": 5,
    "backoff_seconds": 0.3,
    "max_backoff_seconds": 1,
    # Only poison may use up its attempts, also if other messages cannot be routed for long.
    "max_attempts": 1_000_000,
    "retry_rules": json.dumps([{"match": "poison.*", "max_attempts": 2}]),
}
RELAY_TIMES = {"hold_seconds": 0.8, "silence_timeout_seconds": 4, "standby_poll_seconds": 0.3}
RELAY_TIMES |= {"status_interval_seconds": 0.5, "window_bytes": 16 * 1024 * 1024}
SCHEDULER_TIMES = {"lease_seconds": 6, "poll_seconds": 0.3, "broker_outage_cooldown_seconds": 1}
POSTGRES_SETTINGS = {"wal_sender_timeout": "4s", "deadlock_timeout": "200ms"}
POSTGRES_SETTINGS |= {"min_wal_size": "32MB", "max_wal_size": "256MB"}  # the disk is small
SERVICES = ("relay", "scheduler")


class Environment:
    """Context manager: starts everything, and ends everything at the end."""

    def __init__(self, directory: Path, seed: int, *, small_disk: bool = True) -> None:
        self.directory = directory
        self.seed = seed
        self.began = time.monotonic()
        self._use_small_disk = small_disk
        self._resources = ExitStack()

    def __enter__(self) -> Environment:
        try:
            self._start()
        except BaseException:
            self._resources.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for server in (self.postgres, self.rabbit):
            (self.directory / f"{server.name}.log").write_text(server.log())
        self._resources.close()

    def now(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self.began

    @property
    def dsn(self) -> str:
        return self.postgres.dsn(DATABASE)

    def connect(self, **options: Any) -> psycopg.Connection[Any]:
        """An autocommit connection to the database, without a proxy. The caller closes it."""
        return psycopg.connect(self.dsn, **{"autocommit": True, "connect_timeout": 5, **options})

    @contextmanager
    def channel(self) -> Iterator[Any]:
        """A channel to the broker, without a proxy."""
        with _kombu.Connection(self.rabbit.url, connect_timeout=5) as connection, connection.channel() as channel:
            yield channel

    def declare(self, queue: str) -> None:
        with self.channel() as channel:
            _kombu.Queue(queue, _kombu.Exchange(EXCHANGE, "direct"), queue)(channel).declare()

    def deliveries_file(self, queue: str) -> Path:
        """The file in which the consumer of a queue records deliveries."""
        return self.directory / f"{queue}.deliveries"

    @property
    def rolled_back(self) -> Path:
        return self.directory / "rolled-back"

    # -- starting -----------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        enter = self._resources.enter_context
        guard = ProcessGuard()
        self._resources.callback(guard.close)
        self.rabbit = enter(RabbitMQ(configuration={"max_message_size": str(MAX_MESSAGE_BYTES)}))
        self.disk = self._mount(guard)
        data = None if self.disk is None else self.disk.directory / "data"
        self.postgres = enter(Postgres(data, POSTGRES_SETTINGS, durable=False))
        self.proxies = {
            f"{service}s to {server}": enter(FaultProxy("127.0.0.1", port))
            for service in SERVICES
            for server, port in (("broker", self.rabbit.port), ("database", self.postgres.port))
        }
        for service in SERVICES:
            self.proxies[f"{service}s to broker"].reset_on(FATAL.encode())
        self._create_tables()
        for queue in QUEUES:
            self.declare(queue)
        self.processes = ProcessGroup(self._processes(guard))
        self.began = time.monotonic()
        self.processes.start()
        self._resources.callback(self.processes.close)

    def _mount(self, guard: ProcessGuard) -> SmallDisk | None:
        if not self._use_small_disk or os.geteuid() != 0:
            return None
        # In the system's temporary directory: the database's user needs access.
        disk = SmallDisk.mount(Path(tempfile.mkdtemp(prefix="outbox-faults-")) / "disk", guard)
        if disk is not None:
            disk.directory.parent.chmod(0o711)
            self._resources.callback(disk.directory.parent.rmdir)
            self._resources.callback(disk.directory.rmdir)
            self._resources.callback(disk.unmount)
        return disk

    def _create_tables(self) -> None:
        with psycopg.connect(self.postgres.dsn(), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {DATABASE}")
        with self.connect() as connection:
            connection.execute(script("schema.sql", schema="public"))
            connection.execute(script("setup/handover_after.sql", schema="public", handover_after=HANDOVER))
            connection.execute(script("setup/publication.sql", schema="public", publication=PUBLICATION))
            connection.execute(script("setup/slot.sql", slot=SLOT))
            connection.execute(TABLES)

    # -- processes ----------------------------------------------------------------------------------------------------

    def _processes(self, guard: ProcessGuard) -> list[SupervisedProcess]:
        processes = [
            self._service(guard, f"{service}-{letter}", module, times, via=service)
            for service, module, times in (
                ("relay", "outrider.cdc_relay", RELAY_TIMES),
                ("scheduler", "outrider.retry_scheduler", SCHEDULER_TIMES),
            )
            for letter in "ab"
        ]
        common: dict[str, Any] = {"environment": {}, "guard": guard, "logs": self.directory}
        for number, queue in enumerate(QUEUES):
            file = str(self.deliveries_file(queue))
            process = SupervisedProcess(
                f"consumer-{number}", "tests.faults.consumer", (self.rabbit.url, queue, file), **common
            )
            processes.append(process)
        for name in ("producer-0", "producer-1"):
            arguments = (self.dsn, f"{self.seed} {name} {{run}}", str(self.rolled_back))
            processes.append(SupervisedProcess(name, "tests.faults.producer", arguments, **common))
        return processes

    def _service(
        self, guard: ProcessGuard, name: str, module: str, times: dict[str, Any], *, via: str
    ) -> SupervisedProcess:
        values = {
            "database_url": self.proxies[f"{via}s to database"].through(self.dsn),
            "broker_url": self.proxies[f"{via}s to broker"].through(self.rabbit.url),
            "slot": SLOT,
            "publication": PUBLICATION,
            "name": name,
            "log_format": "json",
            **TIMES,
            **times,
        }
        environment = {f"OUTRIDER_{setting.upper()}": str(value) for setting, value in values.items()}
        return SupervisedProcess(name, module, environment=environment, guard=guard, logs=self.directory)
