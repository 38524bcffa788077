"""Faults of PostgreSQL: a crash, a full disk, terminated backends, a dropped slot or publication, locks."""

from __future__ import annotations

import threading
from contextlib import suppress
from random import Random
from typing import Any

import psycopg

from outrider.storage.sql_files import script
from tests.faults.environment import PUBLICATION, SLOT, Environment
from tests.faults.fault import Fault
from tests.fixtures.waiting import wait_for

WAIT_SECONDS = 30.0
SPARE_SEGMENTS = 8
SOME_ROWS = "SELECT id FROM outbox WHERE schema_version = 1 AND id % 2 = 0 FOR UPDATE SKIP LOCKED"
NEWEST_ROWS = "SELECT id FROM outbox WHERE schema_version = 1 ORDER BY id DESC LIMIT 8"


class _DatabaseFault(Fault):
    causes_duplicates = True  # published messages cannot be settled, or their settlement is lost
    target = "PostgreSQL"
    touches = frozenset({"database"})


class DatabaseCrash(_DatabaseFault):
    name = "PostgreSQL immediate shutdown"
    lasts = (0.0, 3.0)

    def inject(self) -> None:
        self.environment.postgres.stop("immediate")

    def heal(self) -> None:
        self.environment.postgres.start()


class DiskFull(_DatabaseFault):
    """Nothing can be written. PostgreSQL may end because of it; then it is restarted after the disk has space."""

    name = "PostgreSQL disk full"
    lasts = (1.0, 4.0)

    @classmethod
    def is_available(cls, environment: Environment) -> bool:
        return environment.disk is not None

    def inject(self) -> None:
        assert self.environment.disk is not None
        self.environment.disk.fill()
        # Use up the WAL segments that are already allocated.
        with suppress(psycopg.Error), self.environment.connect() as connection:
            for _ in range(SPARE_SEGMENTS):
                connection.execute("SELECT txid_current(), pg_switch_wal()")

    def heal(self) -> None:
        assert self.environment.disk is not None
        self.environment.disk.free()
        if not self.environment.postgres.is_running or not self.environment.postgres.is_ready_within(WAIT_SECONDS):
            self.environment.postgres.stop("immediate")
            self.environment.postgres.start()


class _StatementFault(_DatabaseFault):
    """A fault that one statement causes."""

    lasts = (0.0, 1.0)
    statement: str

    def inject(self) -> None:
        with self.environment.connect() as connection:
            connection.execute(self.statement)

    def heal(self) -> None:
        """The services recover themselves."""


class WalsenderTerminated(_StatementFault):
    name = "pg_terminate_backend of the walsender"
    target = "the relay's replication connection"
    statement = "SELECT pg_terminate_backend(pid) FROM pg_stat_replication"


class SettlersTerminated(_StatementFault):
    name = "pg_terminate_backend of the settle connections"
    target = "the services' ordinary connections"
    statement = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE backend_type = 'client backend' AND application_name ~ 'relay|scheduler'"
    )


class SlotDropped(_DatabaseFault):
    name = "slot dropped"
    target = SLOT
    lasts = (0.0, 1.0)

    def inject(self) -> None:
        with self.environment.connect() as connection:
            wait_for(lambda: self._drop(connection), deadline_seconds=WAIT_SECONDS, message="the slot stays in use")

    def heal(self) -> None:
        """The relay creates it again."""

    def _drop(self, connection: psycopg.Connection[Any]) -> bool:
        connection.execute("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active")
        try:
            connection.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")
        except psycopg.errors.ObjectInUse:
            return False  # the standby relay took the slot
        return True


class PublicationDropped(_DatabaseFault):
    name = "publication dropped and restored"
    target = PUBLICATION

    def inject(self) -> None:
        with self.environment.connect() as connection:
            connection.execute(script("setup/drop_publication.sql", publication=PUBLICATION))

    def heal(self) -> None:
        with self.environment.connect() as connection:
            connection.execute(script("setup/publication.sql", schema="public", publication=PUBLICATION))


class _LockFault(_DatabaseFault):
    """A session that holds a lock until the fault is healed."""

    def inject(self) -> None:
        self._connection = self.environment.connect(autocommit=False)
        self._lock(self._connection)

    def heal(self) -> None:
        self._connection.rollback()
        self._connection.close()

    def _lock(self, connection: psycopg.Connection[Any]) -> None:
        raise NotImplementedError


class TableLocked(_LockFault):
    """Sometimes longer than handover_after, so that relay and scheduler both want the rows afterwards."""

    name = "lock on the outbox"
    lasts = (0.5, 8.0)

    def _lock(self, connection: psycopg.Connection[Any]) -> None:
        connection.execute("LOCK TABLE outbox IN ACCESS EXCLUSIVE MODE")


class RowsLocked(_LockFault):
    name = "locks on rows"
    lasts = (0.5, 8.0)

    def _lock(self, connection: psycopg.Connection[Any]) -> None:
        wait_for(
            lambda: connection.execute(SOME_ROWS).fetchall(),
            deadline_seconds=WAIT_SECONDS,
            message="there is no row to lock",
        )


class Deadlocks(_DatabaseFault):
    """
    Sessions that lock rows one by one from the newest to the oldest, the reverse of the order of settlement.

    PostgreSQL aborts one side of each deadlock: sometimes a service.
    """

    name = "deadlocks on rows"
    lasts = (2.0, 6.0)

    def __init__(self, environment: Environment, choice: Random) -> None:
        super().__init__(environment, choice)
        self._healed = threading.Event()
        self._threads = [threading.Thread(target=self._lock_backwards, daemon=True) for _ in range(2)]

    def inject(self) -> None:
        for thread in self._threads:
            thread.start()

    def heal(self) -> None:
        self._healed.set()
        for thread in self._threads:
            thread.join(WAIT_SECONDS)

    def _lock_backwards(self) -> None:
        with self.environment.connect(autocommit=False) as connection:
            while not self._healed.is_set():
                ids = connection.execute(NEWEST_ROWS).fetchall()
                try:
                    for row in ids:
                        connection.execute("SELECT 1 FROM outbox WHERE id = %s FOR UPDATE", row)
                        self._healed.wait(0.03)
                except psycopg.errors.DeadlockDetected:
                    pass
                connection.rollback()
                self._healed.wait(0.01)


DATABASE_FAULTS = (
    DatabaseCrash,
    DiskFull,
    WalsenderTerminated,
    SettlersTerminated,
    SlotDropped,
    PublicationDropped,
    TableLocked,
    RowsLocked,
    Deadlocks,
)
