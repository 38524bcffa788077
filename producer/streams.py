"""
Event streams: an append-only log per aggregate, whose events are also published.

    from outrider import Event, EventStreams, Outbox

    streams = EventStreams(Outbox(exchange="shop"))
    streams.append(connection, "order:42", [Event(event_type="order.paid", payload={...})], expected_version=3)
    for event in streams.load(connection, "order:42"): ...

An append writes to the permanent log `outbox_event` and to the outbox, in one statement of the caller's transaction.
The events of a stream are delivered in the order of their versions (1, 2, 3, ...). If another transaction has appended
since `expected_version`, the append raises ConcurrencyError and has written nothing; the caller's transaction stays
usable. An append locks its stream until the transaction ends, and a second one waits. Under REPEATABLE READ and
SERIALIZABLE the second one fails with PostgreSQL's serialization error instead.

With an asynchronous handle, methods return awaitables, and `iterate` an asynchronous iterator.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Iterable, Iterator
from dataclasses import replace
from datetime import datetime
from itertools import zip_longest
from typing import Any, TypedDict, Unpack, overload
from uuid import UUID

from outrider.errors import ConcurrencyError, EventIdError
from outrider.operations.message_selection import like_pattern
from outrider.producer.context import CurrentContext
from outrider.producer.encoding import Encoded, check_text
from outrider.producer.event import AGGREGATE, Event, encode_headers, parse_event_id, split_moment
from outrider.producer.event_types import as_event
from outrider.producer.handles import adapter_for
from outrider.producer.handles.protocols import AsyncHandle, SyncHandle
from outrider.producer.row import Row
from outrider.producer.snapshots import SnapshotStore
from outrider.producer.stored_event import StoredEvent
from outrider.producer.sync_or_async import Queries, Query, run_queries

APPEND_RETRIES = 100


class ReplayOptions(TypedDict, total=False):
    """The keyword arguments of `EventStreams.replay`, which documents them."""

    stream: str | None
    event_type: str | None
    since: datetime | None
    until: datetime | None
    after: int
    exchange: str | None
    routing_key: str | None
    replay_id: UUID | str | None


class LoadOptions(TypedDict, total=False):
    """The keyword arguments of `EventStreams.load`, which documents them."""

    before: int | None
    backwards: bool


class EventStreams(SnapshotStore):
    """
    The event streams in the schema of an outbox, with its exchange, context and `outside_transaction`.

    types  the classes of events, and upcasters; without it, events are plain
    codec  changes payloads on their way to the tables and back, such as SubjectEncryption
    """

    @overload
    def append(
        self,
        handle: AsyncHandle,
        stream: str,
        events: Iterable[Any],
        expected_version: int | None = None,
    ) -> Awaitable[int]: ...

    @overload
    def append(
        self,
        handle: SyncHandle,
        stream: str,
        events: Iterable[Any],
        expected_version: int | None = None,
    ) -> int: ...

    def append(
        self,
        handle: Any,
        stream: str,
        events: Iterable[Any],
        expected_version: int | None = None,
    ) -> Any:
        """
        Append events; returns the version of the last one, or an awaitable of it.

        events            Event objects, mappings of their fields, or instances of registered classes
        expected_version  the version that the caller has seen, 0 for a new stream; None appends at any version

        An append with the event_ids of events that are in the log already, in this stream and one after the other,
        writes nothing and returns the version that the last of them has, so that it can be repeated. EventIdError if
        one of the ids belongs to another event.
        """
        return run_queries(handle, self._append(stream, self._rows(stream, events), expected_version))

    @overload
    def load(
        self,
        handle: AsyncHandle,
        stream: str,
        after: int = 0,
        limit: int | None = None,
        **options: Unpack[LoadOptions],
    ) -> Awaitable[list[StoredEvent]]: ...

    @overload
    def load(
        self, handle: SyncHandle, stream: str, after: int = 0, limit: int | None = None, **options: Unpack[LoadOptions]
    ) -> list[StoredEvent]: ...

    def load(
        self,
        handle: Any,
        stream: str,
        after: int = 0,
        limit: int | None = None,
        *,
        before: int | None = None,
        backwards: bool = False,
    ) -> Any:
        """
        The events of a stream, in order: a list of StoredEvent, or an awaitable of one.

        after, before  only later, and only earlier, versions than these
        limit          at most so many
        backwards      the newest first
        """
        return run_queries(handle, self._load(stream, after, limit, before, backwards))

    @overload
    def last_version(self, handle: AsyncHandle, stream: str) -> Awaitable[int]: ...

    @overload
    def last_version(self, handle: SyncHandle, stream: str) -> int: ...

    def last_version(self, handle: Any, stream: str) -> Any:
        """The newest version of a stream, or an awaitable of it; 0 when it has no events."""
        return run_queries(handle, self._last_version(stream))

    @overload
    def exists(self, handle: AsyncHandle, stream: str) -> Awaitable[bool]: ...

    @overload
    def exists(self, handle: SyncHandle, stream: str) -> bool: ...

    def exists(self, handle: Any, stream: str) -> Any:
        """Whether a stream has events; or an awaitable of it."""
        return run_queries(handle, self._exists(stream))

    @overload
    def iterate(
        self, handle: AsyncHandle, stream: str, after: int = 0, chunk_size: int = 500
    ) -> AsyncIterator[StoredEvent]: ...

    @overload
    def iterate(
        self, handle: SyncHandle, stream: str, after: int = 0, chunk_size: int = 500
    ) -> Iterator[StoredEvent]: ...

    def iterate(self, handle: Any, stream: str, after: int = 0, chunk_size: int = 500) -> Any:
        """
        The events of a stream, loaded in chunks: an iterator, or an asynchronous one. Events that are appended
        meanwhile are included.
        """
        if adapter_for(handle).is_async:
            return self._iterate_async(handle, stream, after, chunk_size)
        return self._iterate(handle, stream, after, chunk_size)

    @overload
    def replay(self, handle: AsyncHandle, **options: Unpack[ReplayOptions]) -> Awaitable[int]: ...

    @overload
    def replay(self, handle: SyncHandle, **options: Unpack[ReplayOptions]) -> int: ...

    def replay(
        self,
        handle: Any,
        *,
        stream: str | None = None,
        event_type: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        after: int = 0,
        exchange: str | None = None,
        routing_key: str | None = None,
        replay_id: UUID | str | None = None,
    ) -> Any:
        """
        Enqueue events of the log again, with their event_id, their headers (but those of the context) and the headers
        `replayed` and `replay_id`, in one statement of the caller's transaction. All given conditions must hold.
        `outrider replay` does the same in batches.

        stream        of this stream
        event_type    of this type; a glob such as 'order.*'
        since, until  appended at or after, and before, this time
        after         with a later version than this
        exchange      the outbox's exchange by default: the log does not record where an event was sent
        routing_key   the event type by default
        replay_id     of the replay that this one continues; by default a new one. A consumer with an inbox handles an
                      event once for each

        Returns the number of events, or an awaitable of it; -1 in psycopg's pipeline mode, where it is not known yet.
        """
        if stream is None and event_type is None and since is None and until is None:
            raise ValueError("say what to replay: a stream, an event_type, since or until")
        parameters = {
            "stream": stream,
            "event_type": like_pattern(event_type),
            "since": split_moment("since", since)[0],
            "until": split_moment("until", until)[0],
            "after": str(after),
            "exchange": self.outbox.exchange if exchange is None else exchange,
            "routing_key": routing_key,
            "replay_id": str(parse_event_id(replay_id)),
        }
        return adapter_for(handle).execute(handle, self._statements["replay_events"], parameters, self.outbox.guard)

    def _rows(self, stream: str, events: Iterable[Any]) -> list[Row]:
        check_text("stream", stream, 1, 1000)
        context = None if self.outbox.context is None else self.outbox.context.now()
        rows = [self._row(stream, as_event(self.types, event), context) for event in events]
        if not rows:
            raise ValueError("there is no event to append")
        return rows

    def _row(self, stream: str, event: Event, context: CurrentContext | None) -> Row:
        for name in ("deliver_after", "expires", "dedup_key", "aggregate"):
            if getattr(event, name) is not None:
                raise ValueError(f"an event of a stream cannot have {name}")
        if event.ordering_key is not AGGREGATE:
            raise ValueError("an event of a stream is ordered by its stream: leave out ordering_key")
        subject = event.subject
        if subject is not None and self.codec is None:
            raise ValueError("the event has a subject, and these streams have no codec that encrypts its payload")
        if ":" in stream or subject is not None:
            event = replace(event, aggregate=stream if ":" in stream else None, subject=None)
        row = event.row(exchange=self.outbox.exchange, context=context)
        return row | {
            "log_headers": encode_headers(dict(event.headers)) if event.headers else "{}",
            "type_version": str(event.type_version),
            "known_id": None if event.event_id is None else row["event_id"],
            "plain": Encoded(row["payload"], row["content_type"], row["content_encoding"]),
            "subject": subject,
        }

    def _append(self, stream: str, rows: list[Row], expected_version: int | None) -> Queries[int]:
        known_ids = [row["known_id"] for row in rows if row["known_id"] is not None]
        if self.codec is not None:
            encoded = yield from self._encode([(row["plain"], row["subject"]) for row in rows])
            rows = [row | each._asdict() for row, each in zip(rows, encoded, strict=True)]
        parameters = {
            "stream": stream,
            "expected_version": None if expected_version is None else str(expected_version),
            "aggregate_type": rows[0]["aggregate_type"],
            "aggregate_id": rows[0]["aggregate_id"],
            "context": rows[0]["context"],
        }
        if len(rows) == 1 and not known_ids:
            statement = self._statements["append_event"]
            parameters |= {name: rows[0][name] for name in _APPENDED}
        else:
            statement = self._statements["append_events"]
            parameters |= {name: [row[name] for row in rows] for name in _APPENDED} | {"known_ids": known_ids}
        for _ in range(APPEND_RETRIES):
            [(seen, appended)] = yield Query(statement, parameters, self.outbox.guard)
            if appended:
                return int(seen) + len(rows)
            if known_ids and (version := (yield from self._version_of_repeated(stream, rows, known_ids))):
                return version
            if expected_version is not None:
                break
        # The statement may have seen the expected version before another append committed: read it again.
        actual = yield from self._last_version(stream)
        raise ConcurrencyError(stream, int(seen) if expected_version is None else expected_version, actual)

    def _version_of_repeated(self, stream: str, rows: list[Row], known_ids: list[str]) -> Queries[int | None]:
        """The version of the last event, if these events are in the log. None: none of them is."""
        found = yield Query(self._statements["events_by_id"], {"event_ids": known_ids})
        if not found:
            return None
        logged = yield from self._events(found)
        first = logged[0].version
        for number, (row, event) in enumerate(zip_longest(rows, logged)):
            if event is None or row is None or not _is_same(event, stream, first + number, row):
                raise EventIdError(stream, [str(each.event_id) for each in logged])
        return logged[-1].version

    def _last_version(self, stream: str) -> Queries[int]:
        [(version,)] = yield Query(self._statements["stream_version"], {"stream": stream})
        return int(version)

    def _exists(self, stream: str) -> Queries[bool]:
        return (yield from self._last_version(stream)) > 0

    def _load(
        self, stream: str, after: int, limit: int | None, before: int | None = None, backwards: bool = False
    ) -> Queries[list[StoredEvent]]:
        parameters = {
            "stream": stream,
            "after": str(after),
            "before": None if before is None else str(before),
            "limit": None if limit is None else str(limit),
        }
        rows = yield Query(self._statements["load_events_backwards" if backwards else "load_events"], parameters)
        return (yield from self._events(rows))

    def _iterate(self, handle: Any, stream: str, after: int, chunk_size: int) -> Iterator[StoredEvent]:
        while chunk := self.load(handle, stream, after, chunk_size):
            yield from chunk
            after = chunk[-1].version

    async def _iterate_async(self, handle: Any, stream: str, after: int, chunk_size: int) -> AsyncIterator[StoredEvent]:
        while chunk := await self.load(handle, stream, after, chunk_size):
            for event in chunk:
                yield event
            after = chunk[-1].version

    @classmethod
    def _queries(cls) -> tuple[str, ...]:
        own = (
            "append_event",
            "append_events",
            "events_by_id",
            "load_events",
            "load_events_backwards",
            "replay_events",
            "stream_version",
        )
        return (*super()._queries(), *own)


_APPENDED = (
    "event_id", "event_type", "payload", "content_type", "content_encoding", "log_headers", "type_version", "headers",
    "exchange", "routing_key",
)  # fmt: skip


def _is_same(event: StoredEvent, stream: str, version: int, row: Row) -> bool:
    """Whether an event of the log is the one that is appended."""
    return (event.stream, event.version, str(event.event_id), event.event_type, event.payload) == (
        stream,
        version,
        row["event_id"],
        row["event_type"],
        row["plain"].payload,
    )
