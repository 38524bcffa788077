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

import json
from collections.abc import AsyncIterator, Awaitable, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, NamedTuple, TypedDict, Unpack, overload
from uuid import UUID

from outrider.errors import ConcurrencyError
from outrider.operations.message_selection import like_pattern
from outrider.producer.context import CurrentContext
from outrider.producer.encoding import check_text
from outrider.producer.event import AGGREGATE, Event, encode_headers, split_moment
from outrider.producer.handles import adapter_for
from outrider.producer.handles.protocols import AsyncHandle, SyncHandle
from outrider.producer.outbox import Outbox
from outrider.producer.row import Row
from outrider.producer.statement import Statement
from outrider.producer.sync_or_async import Queries, Query, run_queries
from outrider.storage import sql_files

APPEND_RETRIES = 100


class StoredEvent(NamedTuple):
    """An event in the log."""

    stream: str
    version: int
    event_id: UUID
    event_type: str
    payload: bytes
    content_type: str
    content_encoding: str
    headers: Mapping[str, Any]
    """The event's own headers. The headers of the context are in the published message only."""
    created_at: datetime

    @property
    def data(self) -> Any:
        """The payload, decoded: JSON as values, text as str, the rest as bytes."""
        if self.content_type == "application/json":
            return json.loads(self.payload)
        return self.payload.decode(self.content_encoding) if self.content_type == "text/plain" else self.payload


class ReplayOptions(TypedDict, total=False):
    """The keyword arguments of `EventStreams.replay`, which documents them."""

    stream: str | None
    event_type: str | None
    since: datetime | None
    until: datetime | None
    after: int
    exchange: str | None
    routing_key: str | None


class EventStreams:
    """The event streams in the schema of an outbox, with its exchange, context and `outside_transaction`."""

    def __init__(self, outbox: Outbox) -> None:
        self.outbox = outbox
        queries = sql_files.queries_of(outbox.schema)
        self._statements = {name: Statement(queries[name]) for name in _QUERIES}

    @overload
    def append(
        self,
        handle: AsyncHandle,
        stream: str,
        events: Iterable[Event | Mapping[str, Any]],
        expected_version: int | None = None,
    ) -> Awaitable[int]: ...

    @overload
    def append(
        self,
        handle: SyncHandle,
        stream: str,
        events: Iterable[Event | Mapping[str, Any]],
        expected_version: int | None = None,
    ) -> int: ...

    def append(
        self,
        handle: Any,
        stream: str,
        events: Iterable[Event | Mapping[str, Any]],
        expected_version: int | None = None,
    ) -> Any:
        """
        Append events; returns the stream's new version, or an awaitable of it.

        expected_version  the version that the caller has seen, 0 for a new stream; None appends at any version
        """
        check_text("stream", stream, 1, 1000)
        context = None if self.outbox.context is None else self.outbox.context.now()
        rows = [self._row(stream, event if isinstance(event, Event) else Event(**event), context) for event in events]
        if not rows:
            raise ValueError("there is no event to append")
        return run_queries(handle, self._append(stream, rows, expected_version))

    @overload
    def load(
        self, handle: AsyncHandle, stream: str, after: int = 0, limit: int | None = None
    ) -> Awaitable[list[StoredEvent]]: ...

    @overload
    def load(self, handle: SyncHandle, stream: str, after: int = 0, limit: int | None = None) -> list[StoredEvent]: ...

    def load(self, handle: Any, stream: str, after: int = 0, limit: int | None = None) -> Any:
        """The events of a stream after a version, in order: a list of StoredEvent, or an awaitable of one."""
        return run_queries(handle, self._load(stream, after, limit))

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
    ) -> Any:
        """
        Enqueue events of the log again, with their event_id and the header `replayed`, in one statement of the
        caller's transaction. All given conditions must hold. `outrider replay` does the same in batches.

        stream        of this stream
        event_type    of this type; a glob such as 'order.*'
        since, until  appended at or after, and before, this time
        after         with a later version than this
        exchange      the outbox's exchange by default: the log does not record where an event was sent
        routing_key   the event type by default

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
        }
        return adapter_for(handle).execute(handle, self._statements["replay_events"], parameters, self.outbox.guard)

    def _row(self, stream: str, event: Event, context: CurrentContext | None) -> Row:
        for name in ("deliver_after", "expires", "dedup_key", "aggregate"):
            if getattr(event, name) is not None:
                raise ValueError(f"an event of a stream cannot have {name}")
        if event.ordering_key is not AGGREGATE:
            raise ValueError("an event of a stream is ordered by its stream: leave out ordering_key")
        if ":" in stream:
            event = replace(event, aggregate=stream)
        row = event.row(exchange=self.outbox.exchange, context=context)
        return row | {"log_headers": encode_headers(dict(event.headers)) if event.headers else "{}"}

    def _append(self, stream: str, rows: list[Row], expected_version: int | None) -> Queries[int]:
        parameters = {name: [row[name] for row in rows] for name in _APPENDED} | {
            "stream": stream,
            "expected_version": None if expected_version is None else str(expected_version),
            "aggregate_type": rows[0]["aggregate_type"],
            "aggregate_id": rows[0]["aggregate_id"],
            "context": rows[0]["context"],
        }
        for _ in range(APPEND_RETRIES):
            [(seen, appended)] = yield Query(self._statements["append_events"], parameters, self.outbox.guard)
            if appended:
                return int(seen) + len(rows)
            if expected_version is not None:
                break
        # The statement may have seen the expected version before another append committed: read it again.
        [(actual,)] = yield Query(self._statements["stream_version"], {"stream": stream})
        raise ConcurrencyError(stream, int(seen) if expected_version is None else expected_version, int(actual))

    def _load(self, stream: str, after: int, limit: int | None) -> Queries[list[StoredEvent]]:
        parameters = {"stream": stream, "after": str(after), "limit": None if limit is None else str(limit)}
        rows = yield Query(self._statements["load_events"], parameters)
        return [_stored_event(row) for row in rows]

    def _iterate(self, handle: Any, stream: str, after: int, chunk_size: int) -> Iterator[StoredEvent]:
        while chunk := self.load(handle, stream, after, chunk_size):
            yield from chunk
            after = chunk[-1].version

    async def _iterate_async(self, handle: Any, stream: str, after: int, chunk_size: int) -> AsyncIterator[StoredEvent]:
        while chunk := await self.load(handle, stream, after, chunk_size):
            for event in chunk:
                yield event
            after = chunk[-1].version


_QUERIES = ("append_events", "load_events", "replay_events", "stream_version")
_APPENDED = (
    "event_id", "event_type", "payload", "content_type", "content_encoding", "log_headers", "headers", "exchange",
    "routing_key",
)  # fmt: skip


def _stored_event(row: tuple[Any, ...]) -> StoredEvent:
    event = StoredEvent._make(row)
    return event._replace(
        event_id=UUID(str(event.event_id)), payload=bytes(event.payload), headers=json.loads(str(event.headers))
    )
