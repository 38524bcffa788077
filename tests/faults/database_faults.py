"""Faults of PostgreSQL: crash, full disk, backends that are ended, a slot or publication that is dropped, locks."""

from __future__ import annotations

import threading
from contextlib import suppress
from random import Random
from typing import Any

import psycopg

from outrider.storage.sql_files import script
from tests.faults.fault import Fault
from tests.faults.world import PUBLICATION, SLOT, World
from tests.fixtures.waiting import wait_for

PATIENCE_SECONDS = 30.0
SPARE_SEGMENTS = 8
SOME_ROWS = "SELECT id FROM outbox WHERE schema_version = 1 AND id % 2 = 0 FOR UPDATE SKIP LOCKED"
NEWEST_ROWS = "SELECT id FROM outbox WHERE schema_version = 1 ORDER BY id DESC LIMIT 8"


class _OfDatabase(Fault):
    repeats = True  # what was published cannot be settled, or its settlement is lost
    target = "PostgreSQL"
    touches = frozenset({"database"})


class DatabaseCrash(_OfDatabase):
    name = "PostgreSQL immediate shutdown"
    lasts = (0.0, 3.0)

    def inject(self) -> None:
        self.world.postgres.stop("immediate")

    def heal(self) -> None:
        self.world.postgres.start()


class DiskFull(_OfDatabase):
    """Nothing can be written. PostgreSQL may end because of it: then it is started again once there is room."""

    name = "PostgreSQL disk full"
    lasts = (1.0, 4.0)

    @classmethod
    def can_be_had(cls, world: World) -> bool:
        return world.disk is not None

    def inject(self) -> None:
        assert self.world.disk is not None
        self.world.disk.fill()
        # What is left of the segments at hand would last for a while.
        with suppress(psycopg.Error), self.world.connect() as connection:
            for _ in range(SPARE_SEGMENTS):
                connection.execute("SELECT txid_current(), pg_switch_wal()")

    def heal(self) -> None:
        assert self.world.disk is not None
        self.world.disk.relieve()
        if not self.world.postgres.is_running or not self.world.postgres.is_ready_within(PATIENCE_SECONDS):
            self.world.postgres.stop("immediate")
            self.world.postgres.start()


class _ByStatement(_OfDatabase):
    """Something that one statement does."""

    lasts = (0.0, 1.0)
    statement: str

    def inject(self) -> None:
        with self.world.connect() as connection:
            connection.execute(self.statement)

    def heal(self) -> None:
        """The services mend it."""


class WalsenderEnded(_ByStatement):
    name = "pg_terminate_backend of the walsender"
    target = "the relay's replication connection"
    statement = "SELECT pg_terminate_backend(pid) FROM pg_stat_replication"


class SettlersEnded(_ByStatement):
    name = "pg_terminate_backend of the settle connections"
    target = "the services' ordinary connections"
    statement = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE backend_type = 'client backend' AND application_name ~ 'relay|scheduler'"
    )


class SlotDropped(_OfDatabase):
    name = "slot dropped"
    target = SLOT
    lasts = (0.0, 1.0)

    def inject(self) -> None:
        with self.world.connect() as connection:
            wait_for(lambda: self._drop(connection), deadline_seconds=PATIENCE_SECONDS, message="the slot stays in use")

    def heal(self) -> None:
        """The relay creates it again."""

    def _drop(self, connection: psycopg.Connection[Any]) -> bool:
        connection.execute("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active")
        try:
            connection.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")
        except psycopg.errors.ObjectInUse:
            return False  # another relay was faster
        return True


class PublicationDropped(_OfDatabase):
    name = "publication dropped and restored"
    target = PUBLICATION

    def inject(self) -> None:
        with self.world.connect() as connection:
            connection.execute(script("setup/drop_publication.sql", publication=PUBLICATION))

    def heal(self) -> None:
        with self.world.connect() as connection:
            connection.execute(script("setup/publication.sql", schema="public", publication=PUBLICATION))


class _Locks(_OfDatabase):
    """A session that locks and waits; healing ends it."""

    def inject(self) -> None:
        self._connection = self.world.connect(autocommit=False)
        self._lock(self._connection)

    def heal(self) -> None:
        self._connection.rollback()
        self._connection.close()

    def _lock(self, connection: psycopg.Connection[Any]) -> None:
        raise NotImplementedError


class TableLocked(_Locks):
    """Longer than the hand-over at times: who gets the rows afterwards?"""

    name = "lock on the outbox"
    lasts = (0.5, 8.0)

    def _lock(self, connection: psycopg.Connection[Any]) -> None:
        connection.execute("LOCK TABLE outbox IN ACCESS EXCLUSIVE MODE")


class RowsLocked(_Locks):
    name = "locks on rows"
    lasts = (0.5, 8.0)

    def _lock(self, connection: psycopg.Connection[Any]) -> None:
        wait_for(
            lambda: connection.execute(SOME_ROWS).fetchall(),
            deadline_seconds=PATIENCE_SECONDS,
            message="there is no row to lock",
        )


class Deadlocks(_OfDatabase):
    """
    Sessions that lock rows one by one from the newest to the oldest, against the order of those who settle them.

    Who is in the way of whom is left to chance, and PostgreSQL ends one side of each deadlock: at times a service.
    """

    name = "deadlocks on rows"
    lasts = (2.0, 6.0)

    def __init__(self, world: World, choice: Random) -> None:
        super().__init__(world, choice)
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._lock_backwards, daemon=True) for _ in range(2)]

    def inject(self) -> None:
        for thread in self._threads:
            thread.start()

    def heal(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(PATIENCE_SECONDS)

    def _lock_backwards(self) -> None:
        with self.world.connect(autocommit=False) as connection:
            while not self._over.is_set():
                ids = connection.execute(NEWEST_ROWS).fetchall()
                try:
                    for row in ids:
                        connection.execute("SELECT 1 FROM outbox WHERE id = %s FOR UPDATE", row)
                        self._over.wait(0.03)
                except psycopg.errors.DeadlockDetected:
                    pass
                connection.rollback()
                self._over.wait(0.01)


DATABASE_FAULTS = (
    DatabaseCrash,
    DiskFull,
    WalsenderEnded,
    SettlersEnded,
    SlotDropped,
    PublicationDropped,
    TableLocked,
    RowsLocked,
    Deadlocks,
)
