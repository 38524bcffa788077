"""
The log of event streams as an operator sees it: what holds its readers back, where it was written, and new epochs.

Readers follow the ids of transactions, which only grow on one server. A log that is moved to another server (a dump,
logical replication, pg_upgrade) continues in a new epoch, whose events come after all others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from outrider.errors import DatabaseError
from outrider.operations.diagnostic_queries import Unavailable, fetch, fetch_one, try_fetch
from outrider.storage.connection import database_errors
from outrider.storage.sql_files import script
from outrider.storage.store import Store

LOCK_TIMEOUT_SECONDS = 5.0
_LOCK_NOT_AVAILABLE = "55P03"
_OLDER_SCHEMA = ("42P01", "42703")
"""No such table, no such column."""


@dataclass(frozen=True, slots=True)
class EventLogState:
    epoch: int
    unreadable: int
    """Committed events that readers cannot see yet. Exact below the limit of the query."""
    restored: bool
    """The log holds transaction ids that this server has not given out: reading raises EpochError."""
    held_back_by: str | None
    """The oldest transaction of the server that has written, of any database; None: there is none."""
    held_back_seconds: float | None


@dataclass(frozen=True, slots=True)
class LogOrigin:
    """The system identifiers of two servers."""

    log_server: str
    """On which the current epoch began."""
    this_server: str

    @property
    def moved(self) -> bool:
        return self.log_server != self.this_server


class NewEpoch(NamedTuple):
    epoch: int
    moved: int
    """Events that had been appended since the log was restored, and that the new epoch took over."""


def read_log_state(store: Store, *, most: int) -> EventLogState | Unavailable:
    """Unavailable: this role may not read it, or the schema has no order of events yet."""
    try:
        return try_fetch(fetch_one, store, EventLogState, "state_log", most=most)
    except DatabaseError as error:
        if error.sqlstate in _OLDER_SCHEMA:
            return Unavailable("the schema lacks migration 4: run `outrider setup`")
        raise


def read_log_origin(store: Store) -> LogOrigin | None:
    """None: there is no event."""
    return next(iter(fetch(store, LogOrigin, "log_origin")), None)


def start_epoch(store: Store) -> NewEpoch:
    """
    Begin a new epoch of the log. Waits for the transactions that are appending, LOCK_TIMEOUT_SECONDS at most; appends
    and loads wait meanwhile. Needs the role that owns the tables.
    """
    try:
        with database_errors(), store.connection.transaction():
            store.connection.execute(store.queries["lock_timeout"], {"milliseconds": int(LOCK_TIMEOUT_SECONDS * 1000)})
            store.connection.execute(script("setup/lock_log.sql", schema=store.queries.schema))
            epoch = int(store.connection.execute(store.queries["add_epoch"]).fetchall()[0][0])
            store.connection.execute(script("setup/epoch_default.sql", schema=store.queries.schema, epoch=str(epoch)))
            moved = store.connection.execute(store.queries["move_to_epoch"], {"epoch": epoch}).rowcount
    except DatabaseError as error:
        if error.sqlstate != _LOCK_NOT_AVAILABLE:
            raise
        raise DatabaseError(
            f"transactions that have appended events did not end within {LOCK_TIMEOUT_SECONDS:g} s: nothing changed. "
            "Try again, or end them",
            sqlstate=error.sqlstate,
        ) from error
    return NewEpoch(epoch, moved)
