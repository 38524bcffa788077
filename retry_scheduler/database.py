"""
The scheduler's database connection: opened once, and again whenever it is lost, with jittered backoff.

Opening also looks whether the server will do and the tables are there: a wrong database is an error in one line.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

import psycopg

from outrider.errors import DatabaseError, SetupError
from outrider.operations.setup import server_problem
from outrider.runtime.reconnect_delay import reconnect_delay
from outrider.settings.models import SchedulerSettings
from outrider.storage.store import Store, connect
from outrider.telemetry.logs import get_logger

STEADY_SECONDS = 10.0
"""A connection that lasted for so long was a good one: the next backoff starts anew."""

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
        """The store of a connection that works; DatabaseError when there is none."""
        if self._store is not None:
            return self._store
        settings = self._settings
        connection = connect(
            settings.database_dsn,
            application_name=f"retry-scheduler {settings.name}",
            connect_timeout_seconds=settings.connect_timeout_seconds,
        )
        store = Store(connection, settings.schema_name)
        try:
            if problem := server_problem(store):
                raise SetupError(problem)
            store.next_due()
        except DatabaseError as error:
            connection.close()
            if error.sqlstate in _NO_TABLE:
                schema = settings.schema_name
                raise SetupError(
                    f"there is no outbox in the schema {schema!r} of this database: run `outrider setup`, or correct "
                    "database_url and schema",
                    sqlstate=error.sqlstate,
                ) from None
            raise
        self._store = store
        self._opened_at = time.monotonic()
        return store

    def reopen(self, error: DatabaseError, wait: Callable[[float], bool]) -> bool:
        """
        After an error: a new connection, however long it takes. `wait` sleeps, and tells whether to stop waiting.

        Returns False when it was told to stop.
        """
        log.warning("database_lost", reason=str(error), sqlstate=error.sqlstate)
        lost_at = time.monotonic()
        if lost_at - self._opened_at > STEADY_SECONDS:
            self._failures = 0
        self.close()
        while not wait(reconnect_delay(self._failures)):
            try:
                self.open()
            except DatabaseError as again:
                self._failures += 1
                log.debug("database_unavailable", reason=str(again))
            else:
                self._failures += 1  # until the connection proves to be steady
                log.info("database_available", after_seconds=round(time.monotonic() - lost_at, 1))
                return True
        return False

    def close(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            with contextlib.suppress(psycopg.Error):
                store.connection.close()
