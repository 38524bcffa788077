"""
Database: the scheduler's connection, opened again with jittered backoff when it is lost.

Opening also checks the version of the server and that the tables exist: a wrong database is an error of one line.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

import psycopg

from outrider.errors import DatabaseError, SetupError
from outrider.operations.setup.facts import server_problem
from outrider.runtime.reconnect_delay import STEADY_SECONDS, reconnect_delay
from outrider.runtime.service_connections import open_service_store
from outrider.settings.scheduler import SchedulerSettings
from outrider.storage.store import Store
from outrider.telemetry.logs import get_logger

_NO_TABLE = ("42P01", "3F000")

log = get_logger(__name__)


class Database:
    def __init__(self, settings: SchedulerSettings) -> None:
        self._settings = settings
        self._store: Store | None = None
        self._opened_at = 0.0
        self._failures = 0

    @property
    def is_open(self) -> bool:
        return self._store is not None

    def open(self) -> Store:
        """The store, on a new connection if none is open. Raises DatabaseError."""
        if self._store is not None:
            return self._store
        store = open_service_store(self._settings, "retry-scheduler")
        try:
            if problem := server_problem(store):
                raise SetupError(problem)
            store.next_due()
        except DatabaseError as error:
            store.connection.close()
            if error.sqlstate in _NO_TABLE:
                raise SetupError(
                    f"there is no outbox in the schema {self._settings.schema_name!r} of this database: run `outrider "
                    "setup`, or correct database_url and schema",
                    sqlstate=error.sqlstate,
                ) from None
            raise
        self._store = store
        self._opened_at = time.monotonic()
        return store

    def reopen(self, error: DatabaseError, wait: Callable[[float], bool]) -> bool:
        """
        Open a new connection after an error, with as many attempts as it takes.

        `wait` sleeps, and returns whether the service is asked to stop. Returns False if it was.
        """
        log.warning("database_lost", reason=str(error), sqlstate=error.sqlstate)
        lost_at = time.monotonic()
        if lost_at - self._opened_at > STEADY_SECONDS:
            self._failures = 0
        self.close()
        while not wait(reconnect_delay(self._failures)):
            self._failures += 1  # also if it succeeds: the connection may be lost again at once
            try:
                self.open()
            except DatabaseError as again:
                log.debug("database_unavailable", reason=str(again))
            else:
                log.info("database_available", after_seconds=round(time.monotonic() - lost_at, 1))
                return True
        return False

    def close(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            with contextlib.suppress(psycopg.Error):
                store.connection.close()
