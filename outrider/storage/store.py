"""
The store: one method per named query of sql/queries.sql, on an ordinary psycopg connection.

Autocommit: every call is one short transaction, and one that PostgreSQL ended to resolve a deadlock is run again. A
`claim` of None means the relay acts; otherwise the scheduler that holds that claim. Errors of the database come out as
outbox.errors.DatabaseError, in one line. Not thread-safe: one thread owns a store.

psycopg is imported by what connects: a subclass may run the queries over the connection of a framework and its driver.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from outrider.errors import DatabaseError
from outrider.storage.message import SCHEMA_VERSION, Message
from outrider.storage.sql_files import Queries

if TYPE_CHECKING:
    import psycopg

T = TypeVar("T")

RUN_LENGTH = 100
"""How many rows of a key fall due together when its head has left."""

DEADLOCK = "40P01"
DEADLOCKS_BORNE = 20
"""So often a statement is made the victim of a deadlock before it is an error."""


class Refusal(NamedTuple):
    """A message that failed and will be tried again."""

    id: int
    error: str
    backoff_seconds: float


class Burial(NamedTuple):
    """A message that is given up."""

    id: int
    reason: str
    error: str
    spent: int
    """1 where the last attempt counts, 0 where none was made."""


class Sample(NamedTuple):
    """How the outbox is doing."""

    pending: int
    retrying: int
    parked: int
    dead: int
    oldest_seconds: float


class TypeSample(NamedTuple):
    """How the messages of one type are doing."""

    event_type: str
    pending: int
    retrying: int
    oldest_seconds: float


def connect(dsn: str, *, application_name: str, connect_timeout_seconds: float = 5) -> psycopg.Connection[Any]:
    """An autocommit connection that notices a dead peer within half a minute; DatabaseError when there is none."""
    import psycopg
    from psycopg.conninfo import conninfo_to_dict, make_conninfo

    defaults: dict[str, Any] = {
        "application_name": application_name,
        "connect_timeout": max(2, round(connect_timeout_seconds)),
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": 25_000,
    }
    given = conninfo_to_dict(dsn)
    conninfo = make_conninfo(dsn, **{name: value for name, value in defaults.items() if name not in given})
    with database_errors():
        return psycopg.connect(conninfo, autocommit=True)


@contextmanager
def database_errors() -> Iterator[None]:
    """Turn what psycopg raises into a DatabaseError of one line."""
    import psycopg

    try:
        yield
    except psycopg.Error as error:
        text = error.diag.message_primary or next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise DatabaseError(f"PostgreSQL: {text}", sqlstate=error.sqlstate) from error


class Store:
    """The outbox tables of one schema, over one connection."""

    def __init__(self, connection: psycopg.Connection[Any], schema: str) -> None:
        self.connection = connection
        self.queries = Queries(schema)

    # -- what both services do ----------------------------------------------------------------------------------------

    def settle(
        self, ids: Sequence[int], *, claim: str | None = None, archive: bool = False, followed: bool = True
    ) -> list[int]:
        """Delivered rows leave; returns the ids that were there. Not `followed`: no row of their keys waits for it."""
        query = "settle_to_archive" if archive else "settle" if followed else "settle_unfollowed"
        return self._found(query, ids, claim=claim, run_length=RUN_LENGTH)

    def fail(self, refusals: Sequence[Refusal], *, claim: str | None = None) -> list[int]:
        """Refused rows back off; returns the ids that were still the caller's."""
        ids, errors, backoffs = zip(*refusals, strict=True)
        return self._ids("fail", ids=ids, errors=errors, backoff_seconds=backoffs, claim=claim)

    def bury(self, burials: Sequence[Burial], *, claim: str | None = None) -> list[int]:
        """Rows that are given up move to the dead letters; returns the ids that were still the caller's."""
        ids, reasons, errors, spent = zip(*burials, strict=True)
        return self._ids(
            "bury", ids=ids, reasons=reasons, errors=errors, spent=spent, claim=claim, run_length=RUN_LENGTH
        )

    def worker_seen(self, *, kind: str, name: str, role: str, version: str, host: str, pid: int) -> None:
        self._execute("worker_seen", kind=kind, name=name, role=role, version=version, host=host, pid=pid)

    def worker_gone(self, *, kind: str, name: str) -> None:
        self._execute("worker_gone", kind=kind, name=name)

    # -- the relay ----------------------------------------------------------------------------------------------------

    def hand_over(self, ids: Sequence[int]) -> list[int]:
        """Rows of the relay become the scheduler's, due now."""
        return self._found("hand_over", ids)

    def hand_over_all(self, *, batch_size: int = 10_000) -> int:
        """Every row that is in the table now becomes the scheduler's; returns how many did."""
        up_to = self.newest_id()
        handed_over = 0
        while batch := len(self._ids("hand_over_all", up_to=up_to, batch_size=batch_size)):
            handed_over += batch
        return handed_over

    def owners(self, ids: Sequence[int]) -> dict[int, str]:
        """Whose each of these rows is; rows that are gone are missing."""
        return dict(self._execute("owners", ids=_array(ids)))

    def in_progress(self, xids: Iterable[int]) -> set[int]:
        """Which of these transactions a new snapshot does not see yet."""
        return set(self._ids("in_progress", xids=tuple(xids)))

    def keys_in_table(self) -> set[str]:
        return {key for (key,) in self._execute("keys_in_table")}

    def free_keys(self, heads: dict[str, int]) -> set[str]:
        """Of these keys, each with the row that the relay would send next: those that wait for nothing."""
        rows = self._execute("free_keys", keys=list(heads), ids=list(heads.values()))
        return {key for (key,) in rows}

    def wal_position(self) -> str:
        return str(self._value("wal_position"))

    def server_clock(self) -> int:
        return int(self._value("server_clock"))

    # -- the scheduler ------------------------------------------------------------------------------------------------

    def claim_due(self, claim: str, *, batch_size: int, lease_seconds: float) -> tuple[list[Message], int]:
        """Lease due rows; returns them, in order of their ids, and how many were parked behind their key's head."""
        rows = self._execute(
            "claim_due",
            claim=claim,
            batch_size=batch_size,
            lease=timedelta(seconds=lease_seconds),
            schema_version=SCHEMA_VERSION,
        )
        return [Message._make(row[1:]) for row in rows if row[1] is not None], rows[0][0]

    def next_due(self) -> float | None:
        """Seconds until a row falls due; None when none will by itself."""
        seconds = self._value("next_due", schema_version=SCHEMA_VERSION)
        return None if seconds is None else float(seconds)

    def defer(self, ids: Sequence[int], *, claim: str, cooldown_seconds: float) -> list[int]:
        return self._found("defer", ids, claim=claim, cooldown=timedelta(seconds=cooldown_seconds))

    def release(self, ids: Sequence[int], *, claim: str) -> list[int]:
        return self._found("release", ids, claim=claim)

    def unpark_heads(self) -> list[int]:
        """Parked rows that have become the head of their key fall due."""
        return self._ids("unpark_heads")

    def expire(self, *, batch_size: int) -> list[str]:
        """Messages past their expires_at move to the dead letters, one batch; returns the type of each."""
        parameters = {"batch_size": batch_size, "run_length": RUN_LENGTH, "schema_version": SCHEMA_VERSION}
        return [event_type for (event_type,) in self._execute("expire", **parameters)]

    def prune_archive(self, *, retention_seconds: float, batch_size: int) -> int:
        return len(self._ids("prune_archive", retention=timedelta(seconds=retention_seconds), batch_size=batch_size))

    def prune_dead_letters(self, *, retention_seconds: float, batch_size: int) -> int:
        retention = timedelta(seconds=retention_seconds)
        return len(self._ids("prune_dead_letters", retention=retention, batch_size=batch_size))

    def prune_events(
        self, *, retention_seconds: float, batch_size: int, after: datetime | None
    ) -> tuple[int, int, datetime | None]:
        """One batch of the walk: how many events it looked at, how many are gone, where it got to."""
        retention = timedelta(seconds=retention_seconds)
        (row,) = self._execute("prune_events", retention=retention, batch_size=batch_size, after=after)
        return row[0], row[1], row[2]

    def prune_inbox(self, *, retention_seconds: float, batch_size: int) -> int:
        return len(self._ids("prune_inbox", retention=timedelta(seconds=retention_seconds), batch_size=batch_size))

    def forget_workers(self, *, unseen_seconds: float) -> int:
        return len(self._ids("forget_workers", unseen=timedelta(seconds=unseen_seconds)))

    def sample(self, *, most: int) -> Sample:
        """The gauges; counts are bounded by `most`, or estimates beyond it."""
        return Sample._make(self._execute("sample", most=most)[0])

    def pending_types(self, *, most: int, at_most: int) -> list[TypeSample]:
        """The most frequent types among the `most` rows that are due first."""
        return [TypeSample._make(row) for row in self._execute("pending_types", most=most, at_most=at_most)]

    # -- dead letters -------------------------------------------------------------------------------------------------

    def newest_dead_letter(self) -> int:
        return int(self._value("newest_dead_letter"))

    def dead_outlines(
        self, selection: Mapping[str, object], *, after: int, up_to: int, batch_size: int
    ) -> list[tuple[int, str, str, str | None, datetime]]:
        """One batch of the walk over dead letters: id, reason, event_type, last_error, died_at."""
        return self._execute("dead_outlines", **selection, after=after, up_to=up_to, batch_size=batch_size)

    def replay_dead(self, ids: Sequence[int]) -> tuple[int, int]:
        """How many of these were there, and how many went back into the outbox."""
        (row,) = self._execute("replay_dead", ids=list(ids))
        return row[0], row[1]

    def discard_dead(self, ids: Sequence[int]) -> int:
        return len(self._ids("discard_dead", ids=list(ids)))

    def dead_letters(
        self, selection: Mapping[str, object], *, before: tuple[datetime, int] | None, batch_size: int
    ) -> list[Any]:
        """A page of dead letters, the newest first, after the one that died at this time and had this id."""
        died_at, row_id = before or (None, None)
        return self._execute("dead_letters", **selection, before=died_at, before_id=row_id, batch_size=batch_size)

    def dead_letter(self, selection: Mapping[str, object]) -> Sequence[Any] | None:
        """The newest of them, whole."""
        return next(iter(self._execute("dead_letter", **selection)), None)

    # -- messages that wait -------------------------------------------------------------------------------------------

    def newest_id(self) -> int:
        return int(self._value("newest_id"))

    def pending_messages(
        self, selection: Mapping[str, object], *, after: int, up_to: int, batch_size: int
    ) -> list[Any]:
        """One batch of the walk over messages that wait."""
        return self._execute("pending_messages", **selection, after=after, up_to=up_to, batch_size=batch_size)

    def pending_message(self, selection: Mapping[str, object]) -> Sequence[Any] | None:
        """The newest of them, whole."""
        return next(iter(self._execute("pending_message", **selection)), None)

    def retry_now(self, ids: Sequence[int], *, reset_attempts: bool) -> list[int]:
        """Rows fall due for the scheduler; returns those that did: nobody held them, and no key was before them."""
        return self._ids("retry_now", ids=list(ids), reset_attempts=reset_attempts)

    # -- replay of what was sent --------------------------------------------------------------------------------------

    def replayable_types(self, selection: Mapping[str, object], *, archive: bool) -> list[Any]:
        """What a replay would send: event_type, how many, the first and the last instant."""
        return self._execute("archived_types" if archive else "logged_types", **selection)

    def replayable_keys(
        self, selection: Mapping[str, object], *, archive: bool, batch_size: int
    ) -> Iterator[list[tuple[Any, ...]]]:
        """The keys of what a replay sends, in order and in batches; as of now, however long it takes."""
        # Held by the server beyond its transaction: hours of paced work must not keep vacuum from its own.
        with database_errors(), self.connection.cursor("outbox_replay", withhold=True) as cursor:
            cursor.execute(self.queries["archived_keys" if archive else "logged_keys"], selection)
            while batch := cursor.fetchmany(batch_size):
                yield batch

    def replay_logged(
        self, streams: Sequence[str], versions: Sequence[int], *, exchange: str, routing_key: str | None
    ) -> int:
        route = {"exchange": exchange, "routing_key": routing_key}
        return int(self._value("replay_logged", streams=list(streams), versions=list(versions), **route))

    def replay_archived(self, ids: Sequence[int], *, exchange: str | None, routing_key: str | None) -> int:
        return int(self._value("replay_archived", ids=list(ids), exchange=exchange, routing_key=routing_key))

    # -- one message by hand ------------------------------------------------------------------------------------------

    def enqueue(self, row: Mapping[str, object], *, delayed: bool) -> bool:
        """False: its dedup_key is pending already, and nothing was written."""
        with database_errors():
            cursor = self.connection.execute(self.queries["enqueue_delayed" if delayed else "enqueue_once"], row)
            return cursor.rowcount == 1

    def enqueued_id(self, event_id: str, *, after: int) -> int:
        """The id of a row that was enqueued when this was the newest id."""
        return int(self._value("enqueued_id", event_id=event_id, after=after))

    def fate(self, row_id: int) -> tuple[str | None, int, str | None] | None:
        """Why the message died (None: it is pending), its attempts, its last error; None where it is delivered."""
        return next(iter(self._execute("fate", id=row_id)), None)

    # -- running a query ----------------------------------------------------------------------------------------------

    def _execute(self, name: str, /, **parameters: object) -> list[Any]:
        return self._run(name, parameters, _all_rows)

    def _run(self, name: str, parameters: Mapping[str, object], take: Callable[[Any], T]) -> T:
        """Run a query and take from its cursor what is wanted."""
        for _ in range(DEADLOCKS_BORNE):
            try:
                return self._run_once(name, parameters, take)
            except DatabaseError as error:
                if error.sqlstate != DEADLOCK or self._in_transaction():
                    raise
        return self._run_once(name, parameters, take)

    def _run_once(self, name: str, parameters: Mapping[str, object], take: Callable[[Any], T]) -> T:
        with database_errors():
            return take(self.connection.execute(self.queries[name], parameters))

    def _in_transaction(self) -> bool:
        """Of the caller's: what it did before the statement is lost with it, and only the caller can do it again."""
        from psycopg.pq import TransactionStatus

        return self.connection.info.transaction_status != TransactionStatus.IDLE

    def _value(self, name: str, /, **parameters: object) -> Any:
        return self._execute(name, **parameters)[0][0]

    def _ids(self, name: str, /, **parameters: object) -> list[int]:
        bound = {key: list(value) if isinstance(value, tuple) else value for key, value in parameters.items()}
        return [row[0] for row in self._execute(name, **bound)]

    def _found(self, name: str, ids: Sequence[int], **parameters: object) -> list[int]:
        """Run a query that returns those of these ids that it found. They are read only if it did not find them all."""
        wanted = list(ids)

        def found(cursor: Any) -> list[int]:
            return wanted if cursor.rowcount == len(wanted) else [row[0] for row in cursor.fetchall()]

        return self._run(name, {"ids": _array(wanted), **parameters}, found)


def _all_rows(cursor: Any) -> list[Any]:
    return list(cursor.fetchall()) if cursor.description else []


def _array(ids: Iterable[int]) -> str:
    """As PostgreSQL writes an array of numbers. Drivers take ten times as long for it."""
    return f"{{{','.join(map(str, ids))}}}"
