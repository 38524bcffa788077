"""
State of one outbox: the source of `outrider status`, its --json and `state` in the services' /status.

`read_state` needs only SELECT (the observer role of sql/roles.sql can read all of it) and its cost is bounded (see
COUNT_LIMIT and diagnostic_queries.py). A part that the role may not read is None, and `unseen` says why. It changes
nothing, and returns no part of a message.

`as_document` is the JSON form, kept stable: keys may be added, none changes its meaning. All times are the database's,
in ISO 8601; ages are in seconds.

    at, database, schema        the time of the state, and the outbox that it describes
    timeline                    the server's: above 1 it was promoted or restored (`outrider doctor` says when, and what
                                that means for messages); null on a standby
    exact_below                 counts below it are exact; at or above it they are lower bounds or estimates
    queues                      pending: rows of the outbox. Each of them is one of
                                  due (a scheduler may claim it), with_relay (new), claimed (by a scheduler),
                                  parked (behind the head of its ordering key), delayed (no attempt yet: delayed by the
                                  producer, or deferred by an outage), or backing_off (after a failure)
                                parked_keys: ordering keys with parked rows
                                retrying: rows of any of these that failed at least once
                                unsupported: rows of any of these with a schema_version that this version does not know:
                                  they are not sent
                                oldest_seconds: age of the oldest row that is not delayed; null without one
                                overdue_seconds: how long the longest due row has been due; null without one
    dead                        total, and by_reason among the newest
    archive                     total of delivered messages that are kept
    event_log                   epoch; unreadable: committed events that readers cannot see yet; restored: the log needs
                                `outrider events new-epoch`; held_back_by and held_back_seconds: the oldest transaction
                                that has written, in any database, or null
    workers                     kind, name, role, host, pid, version, started_at, last_seen_at, silent_seconds, stale
    slot                        null: there is no slot (polling only, or the relay has not created it); else name,
                                active, active_pid, wal_status, lost (why it cannot be read any more, or null),
                                retained_bytes, safe_wal_bytes, lag_bytes (not confirmed yet), failover, and the columns
                                plugin, database, restart_lsn, confirmed_flush_lsn, invalidation_reason, conflicting
    publication                 null: there is none; else name, tables, problem (why the relay cannot use it, or null)
    unseen                      the parts that could not be read, and why
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, TypeVar

from outrider.errors import DatabaseError, SetupError
from outrider.operations.diagnostic_queries import Unavailable, fetch, fetch_one, try_fetch
from outrider.operations.event_log import EventLogState, read_log_state
from outrider.operations.setup.facts import SlotState, publication_shape, slot_state
from outrider.settings.database import DatabaseSettings
from outrider.storage.connection import connect
from outrider.storage.service_queries import STALE_SECONDS
from outrider.storage.store import Store

COUNT_LIMIT = 10_000
"""No count reads more rows than this."""

MOST_WORKERS = 200

_NO_TABLE = ("42P01", "3F000")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class QueueCounts:
    pending: int
    due: int
    with_relay: int
    claimed: int
    delayed: int
    backing_off: int
    parked: int
    parked_keys: int
    retrying: int
    unsupported: int
    oldest_seconds: float | None
    overdue_seconds: float | None


@dataclass(frozen=True, slots=True)
class DeadLetterCounts:
    total: int
    by_reason: dict[str, int]


@dataclass(frozen=True, slots=True)
class ArchiveCount:
    total: int


@dataclass(frozen=True, slots=True)
class ServicePresence:
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
class PublicationSummary:
    name: str
    tables: list[str]
    problem: str | None


@dataclass(frozen=True, slots=True)
class OutboxState:
    """The module's docstring explains each part."""

    at: datetime
    database: str
    schema: str
    timeline: int | None
    queues: QueueCounts | None
    dead: DeadLetterCounts | None
    archive: ArchiveCount | None
    event_log: EventLogState | None
    workers: list[ServicePresence] | None
    slot: SlotState | None
    publication: PublicationSummary | None
    unseen: dict[str, str]

    @property
    def blind(self) -> bool:
        """None of the messages could be seen."""
        return {"queues", "dead"} <= self.unseen.keys()


def read_state(store: Store, *, publication: str, slot: str) -> OutboxState:
    """SetupError if there is no outbox; DatabaseError if the database cannot be reached."""
    unseen: dict[str, str] = {}

    def or_unseen(part: str, found: T | Unavailable) -> T | None:
        if isinstance(found, Unavailable):
            unseen[part] = found.reason
            return None
        return found

    try:
        return OutboxState(
            **fetch_one(store, dict, "state_moment"),
            schema=store.queries.schema,
            queues=or_unseen("queues", try_fetch(read_queue_counts, store)),
            dead=or_unseen("dead", try_fetch(fetch_one, store, DeadLetterCounts, "state_dead", most=COUNT_LIMIT)),
            archive=or_unseen("archive", try_fetch(fetch_one, store, ArchiveCount, "state_archive", most=COUNT_LIMIT)),
            event_log=or_unseen("event_log", read_log_state(store, most=COUNT_LIMIT)),
            workers=or_unseen("workers", try_fetch(read_workers, store)),
            slot=or_unseen("slot", try_fetch(slot_state, store, slot)),
            publication=or_unseen("publication", try_fetch(_read_publication, store, publication)),
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


def connect_and_read_state(settings: DatabaseSettings, *, connect_timeout_seconds: float = 5) -> OutboxState:
    """Like `read_state`, over a new connection that is closed at once."""
    with connect(
        settings.database_dsn, application_name="outrider status", connect_timeout_seconds=connect_timeout_seconds
    ) as connection:
        store = Store(connection, settings.schema_name)
        return read_state(store, publication=settings.publication, slot=settings.slot)


def read_queue_counts(store: Store) -> QueueCounts:
    return fetch_one(store, QueueCounts, "state_queues", most=COUNT_LIMIT)


def read_workers(store: Store) -> list[ServicePresence]:
    return fetch(store, ServicePresence, "state_workers", most=MOST_WORKERS)


def as_document(state: OutboxState) -> dict[str, Any]:
    """The state for json.dumps; the module's docstring explains the keys."""
    document = asdict(state)
    if state.workers is not None:
        document["workers"] = [{**asdict(worker), "stale": worker.stale} for worker in state.workers]
    if state.slot is not None:
        document["slot"]["lost"] = state.slot.lost
    head = {name: document.pop(name) for name in ("at", "database", "schema", "timeline")}
    return {key: _as_json(value) for key, value in {**head, "exact_below": COUNT_LIMIT, **document}.items()}


def _as_json(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, float):
        return round(value, 3)
    if isinstance(value, dict):
        return {key: _as_json(each) for key, each in value.items()}
    return [_as_json(each) for each in value] if isinstance(value, list) else value


def _read_publication(store: Store, name: str) -> PublicationSummary | None:
    shape = publication_shape(store, name)
    if shape is None:
        return None
    return PublicationSummary(name, shape.tables, shape.problem(store.queries.schema, name))
