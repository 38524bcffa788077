"""
State: a picture of one outbox, the same for `outrider status`, its --json and the services' /status.

`read_state` takes it at a bounded cost (see COUNT_LIMIT and outrider/operations/diagnostics.py) and needs nothing but SELECT; the observer role
of sql/roles.sql sees all of it. What the asking role may not see is None, and `unseen` says why. Nothing is changed,
and no part of a message or of an address is in it.

`as_document` is the JSON form, kept stable: keys may be added, none changes its meaning. All times are the database's,
in ISO 8601; ages are in seconds.

    at, database, schema        when and of what
    exact_below                 counts below it are exact; one that reaches it means "at least", or is an estimate
    queues                      pending: rows of the outbox. Each of them is either
                                  due (waits for a scheduler), with_relay (fresh), claimed (a scheduler is at it),
                                  parked (behind the head of its key), delayed (no attempt yet, not before a given time:
                                  delayed on purpose, or deferred by an outage), or backing off after a failure.
                                retrying: rows of any of these that have failed before
                                blocked_keys: ordering keys with parked rows
                                oldest_seconds: age of the oldest row; null without rows
                                overdue_seconds: how long the row that is due for longest has been; null without one
    dead                        total, and by_reason among the newest
    archive                     total of delivered messages that are kept
    workers                     kind, name, role, host, pid, version, started_at, last_seen_at, silent_seconds, stale
    slot                        null: there is none (polling only, or a relay will make it); else name, active,
                                active_pid, wal_status, lost (why nothing can be read from it, or null), retained_bytes,
                                safe_wal_bytes, lag_bytes (not confirmed yet), failover
    publication                 null: there is none; else name, tables, problem (why the relay cannot use it, or null)
    unseen                      which of these parts could not be seen, and why
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, TypeVar

from outrider.errors import DatabaseError, SetupError
from outrider.operations.diagnostics import Unavailable, fetch, try_fetch
from outrider.operations.setup.facts import publication_shape, slot_state
from outrider.storage.presence import INTERVAL_SECONDS
from outrider.storage.store import Store

COUNT_LIMIT = 10_000
"""No count looks at more rows than that."""

MOST_WORKERS = 200

STALE_SECONDS = 4 * INTERVAL_SECONDS
"""A worker that was not seen for so long has been killed, or is cut off from the database."""

_NO_TABLE = ("42P01", "3F000")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Moment:
    at: datetime
    database: str


@dataclass(frozen=True, slots=True)
class Queues:
    pending: int
    due: int
    with_relay: int
    claimed: int
    delayed: int
    retrying: int
    parked: int
    blocked_keys: int
    oldest_seconds: float | None
    overdue_seconds: float | None


@dataclass(frozen=True, slots=True)
class Dead:
    total: int
    by_reason: dict[str, int]


@dataclass(frozen=True, slots=True)
class Archive:
    total: int


@dataclass(frozen=True, slots=True)
class Worker:
    kind: str
    name: str
    role: str
    host: str
    pid: int
    version: str
    started_at: datetime
    last_seen_at: datetime
    silent_seconds: float

    @property
    def stale(self) -> bool:
        return self.silent_seconds > STALE_SECONDS


@dataclass(frozen=True, slots=True)
class Slot:
    name: str
    active: bool
    active_pid: int | None
    wal_status: str | None
    lost: str | None
    retained_bytes: int | None
    safe_wal_bytes: int | None
    lag_bytes: int | None
    failover: bool


@dataclass(frozen=True, slots=True)
class Publication:
    name: str
    tables: list[str]
    problem: str | None


@dataclass(frozen=True, slots=True)
class State:
    """See the module for what each part means."""

    moment: Moment
    schema: str
    queues: Queues | None
    dead: Dead | None
    archive: Archive | None
    workers: list[Worker] | None
    slot: Slot | None
    publication: Publication | None
    unseen: dict[str, str]


def read_state(store: Store, *, publication: str, slot: str) -> State:
    """The picture. SetupError where there is no outbox; DatabaseError where the database cannot be asked."""
    unseen: dict[str, str] = {}

    def seen(part: str, found: T | Unavailable) -> T | None:
        if isinstance(found, Unavailable):
            unseen[part] = found.reason
            return None
        return found

    try:
        return State(
            moment=fetch(store, Moment, "state_moment")[0],
            schema=store.queries.schema,
            queues=seen("queues", try_fetch(lambda: read_queues(store))),
            dead=seen("dead", try_fetch(lambda: fetch(store, Dead, "state_dead", most=COUNT_LIMIT)[0])),
            archive=seen("archive", try_fetch(lambda: fetch(store, Archive, "state_archive", most=COUNT_LIMIT)[0])),
            workers=seen("workers", try_fetch(lambda: read_workers(store))),
            slot=seen("slot", try_fetch(lambda: _read_slot(store, slot))),
            publication=seen("publication", try_fetch(lambda: _read_publication(store, publication))),
            unseen=unseen,
        )
    except DatabaseError as error:
        if error.sqlstate in _NO_TABLE:
            raise SetupError(
                f"there is no outbox in the schema {store.queries.schema!r} of this database: run `outrider setup`, or "
                "correct database_url and schema",
                sqlstate=error.sqlstate,
            ) from None
        raise


def read_queues(store: Store) -> Queues:
    return fetch(store, Queues, "state_queues", most=COUNT_LIMIT)[0]


def read_workers(store: Store) -> list[Worker]:
    return fetch(store, Worker, "state_workers", most=MOST_WORKERS)


def as_document(state: State) -> dict[str, Any]:
    """The state for json.dumps; see the module for its keys."""
    parts = asdict(state)
    if state.workers is not None:
        parts["workers"] = [{**asdict(worker), "stale": worker.stale} for worker in state.workers]
    document = {
        "at": state.moment.at,
        "database": state.moment.database,
        "schema": state.schema,
        "exact_below": COUNT_LIMIT,
        **{part: value for part, value in parts.items() if part not in ("moment", "schema")},
    }
    return {key: _plain(value) for key, value in document.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, float):
        return round(value, 3)
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list) else value


@dataclass(frozen=True, slots=True)
class _Lag:
    lag_bytes: int | None


def _read_slot(store: Store, name: str) -> Slot | None:
    found = slot_state(store, name)
    if found is None:
        return None
    lag = fetch(store, _Lag, "state_slot_lag", slot=name)
    return Slot(
        name=found.name,
        active=found.active,
        active_pid=found.active_pid,
        wal_status=found.wal_status,
        lost=found.lost,
        retained_bytes=found.retained_bytes,
        safe_wal_bytes=found.safe_wal_bytes,
        lag_bytes=lag[0].lag_bytes if lag else None,
        failover=found.failover,
    )


def _read_publication(store: Store, name: str) -> Publication | None:
    shape = publication_shape(store, name)
    if shape is None:
        return None
    return Publication(name, shape.tables, shape.problem(store.queries.schema, name))
