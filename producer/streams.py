"""
Event streams: an append-only log per aggregate, published as it grows.

    streams = EventStreams(outbox)
    streams.append(connection, "order:42", [Event(event_type="order.paid", payload={...})], expected_version=3)
    for event in streams.load(connection, "order:42"): ...

An append writes to the permanent log `outbox_event` and to the outbox, in one statement of the caller's transaction;
the events of a stream reach consumers in the order of their versions (1, 2, 3, ...). When somebody else was faster, it
raises ConcurrencyError and has written nothing: the transaction goes on. Two appends to one stream wait for each other
from the statement to the commit. Under REPEATABLE READ and SERIALIZABLE the slower one fails with PostgreSQL's own
serialization error instead.

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
from outrider.producer.context import CurrentContext
from outrider.producer.event import AGGREGATE, Event, Row, check_text, encode_headers, split_moment
from outrider.producer.handles import Adapter, adapter_for
from outrider.producer.handles.protocols import AsyncHandle, SyncHandle
from outrider.producer.outbox import Outbox
from outrider.producer.statement import Statement
from outrider.producer.sync_or_async import Steps, fetch, finish
from outrider.storage.sql_files import Queries

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
    """The event's own headers; those of its context at the time went on the wire only."""
    created_at: datetime

    @property
    def data(self) -> Any:
        """The payload, decoded: JSON as values, text as str, the rest as bytes."""
        if self.content_type == "application/json":
            return json.loads(self.payload)
        return self.payload.decode(self.content_encoding) if self.content_type == "text/plain" else self.payload


class EventSelection(TypedDict, total=False):
    """What `EventStreams.replay` takes, and documents."""

    stream: str | None
    event_type: str | None
    since: datetime | None
    until: datetime | None
    after: int
    exchange: str | None
    routing_key: str | None


class EventStreams:
    """The streams of an outbox's schema. `outbox` gives the exchange, the context and the rule on transactions."""

    def __init__(self, outbox: Outbox) -> None:
        self.outbox = outbox
        queries = Queries(outbox.schema)
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

        expected_version  what the caller has seen: 0 for a new stream. None appends to whatever is there.
        """
        check_text("stream", stream, 1, 1000)
        context = None if self.outbox.context is None else self.outbox.context.now()
        rows = [self._row(stream, event if isinstance(event, Event) else Event(**event), context) for event in events]
        if not rows:
            raise ValueError("there is no event to append")
        return finish(adapter_for(handle), self._append(handle, stream, rows, expected_version))

    @overload
    def load(
        self, handle: AsyncHandle, stream: str, after: int = 0, limit: int | None = None
    ) -> Awaitable[list[StoredEvent]]: ...

    @overload
    def load(self, handle: SyncHandle, stream: str, after: int = 0, limit: int | None = None) -> list[StoredEvent]: ...

    def load(self, handle: Any, stream: str, after: int = 0, limit: int | None = None) -> Any:
        """The events of a stream after a version, in order: a list of StoredEvent, or an awaitable of one."""
        return finish(adapter_for(handle), self._load(handle, stream, after, limit))

    @overload
    def iterate(
        self, handle: AsyncHandle, stream: str, after: int = 0, chunk_size: int = 500
    ) -> AsyncIterator[StoredEvent]: ...

    @overload
    def iterate(
        self, handle: SyncHandle, stream: str, after: int = 0, chunk_size: int = 500
    ) -> Iterator[StoredEvent]: ...

    def iterate(self, handle: Any, stream: str, after: int = 0, chunk_size: int = 500) -> Any:
        """The events of a stream, loaded in chunks: an iterator, or an asynchronous one. It sees what is appended."""
        adapter = adapter_for(handle)
        if adapter.is_async:
            return self._aiterate(handle, adapter, stream, after, chunk_size)
        return self._iterate(handle, adapter, stream, after, chunk_size)

    @overload
    def replay(self, handle: AsyncHandle, **selection: Unpack[EventSelection]) -> Awaitable[int]: ...

    @overload
    def replay(self, handle: SyncHandle, **selection: Unpack[EventSelection]) -> int: ...

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
        Send events of the log once more: of a stream (after a version), of a type, of a time range, or all of these.

        They keep their event_id and carry the header `replayed`. The log does not know where an event once went:
        they go to the outbox's exchange by their type, or as told here. Returns how many (-1 in psycopg's pipeline
        mode, which cannot tell yet), or an awaitable of it.
        """
        if stream is None and event_type is None and since is None and until is None:
            raise ValueError("say what to replay: a stream, an event_type, since or until")
        parameters = {
            "stream": stream,
            "event_type": event_type,
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

    def _append(self, handle: Any, stream: str, rows: list[Row], expected_version: int | None) -> Steps[int]:
        parameters = {name: [row[name] for row in rows] for name in _APPENDED} | {
            "stream": stream,
            "expected_version": None if expected_version is None else str(expected_version),
            "aggregate_type": rows[0]["aggregate_type"],
            "aggregate_id": rows[0]["aggregate_id"],
            "context": rows[0]["context"],
        }
        for _ in range(APPEND_RETRIES):
            [(seen, appended)] = yield fetch(handle, self._statements["append_events"], parameters, self.outbox.guard)
            if appended:
                return int(seen) + len(rows)
            if expected_version is not None:
                break
        # What was seen may be what was expected, overtaken since: ask for the version that won.
        [(actual,)] = yield fetch(handle, self._statements["stream_version"], {"stream": stream})
        raise ConcurrencyError(stream, int(seen) if expected_version is None else expected_version, int(actual))

    def _load(self, handle: Any, stream: str, after: int, limit: int | None) -> Steps[list[StoredEvent]]:
        parameters = {"stream": stream, "after": str(after), "limit": None if limit is None else str(limit)}
        rows = yield fetch(handle, self._statements["load_events"], parameters)
        return [_stored(*row) for row in rows]

    def _iterate(
        self, handle: Any, adapter: Adapter, stream: str, after: int, chunk_size: int
    ) -> Iterator[StoredEvent]:
        while chunk := finish(adapter, self._load(handle, stream, after, chunk_size)):
            yield from chunk
            after = chunk[-1].version

    async def _aiterate(
        self, handle: Any, adapter: Adapter, stream: str, after: int, chunk_size: int
    ) -> AsyncIterator[StoredEvent]:
        while chunk := await finish(adapter, self._load(handle, stream, after, chunk_size)):
            for event in chunk:
                yield event
            after = chunk[-1].version


_QUERIES = ("append_events", "load_events", "replay_events", "stream_version")
_APPENDED = (
    "event_id", "event_type", "payload", "content_type", "content_encoding", "log_headers", "headers", "exchange",
    "routing_key",
)  # fmt: skip


def _stored(
    stream: str,
    version: int,
    event_id: str,
    event_type: str,
    payload: bytes | memoryview,
    content_type: str,
    content_encoding: str,
    headers: str,
    created_at: datetime,
) -> StoredEvent:
    return StoredEvent(
        stream,
        version,
        UUID(event_id),
        event_type,
        bytes(payload),
        content_type,
        content_encoding,
        json.loads(headers),
        created_at,
    )
