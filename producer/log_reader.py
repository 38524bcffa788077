"""
LogReader: read the events of all streams, or of some categories, in one order.

    page = streams.read(connection, after=position, category="order", limit=500)
    for event in page: ...
    position = page.next_position

A reader that goes on from where it stopped sees every committed event exactly once, and the events of a stream in the
order of their versions. It takes no lock. What it cannot see yet: events of transactions that are running, and all
events behind them. A transaction that writes anywhere on the server and stays open therefore holds all readers back
(`outrider doctor` and `outrider status` name it), also the reader's own: read before you write.

Events from before a position never change. docs/event-sourcing.md explains why this is so.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, overload

from outrider.errors import EpochError
from outrider.operations.message_selection import like_pattern
from outrider.producer.encoding import Encoded
from outrider.producer.event_types import EventTypes
from outrider.producer.handles import adapter_for
from outrider.producer.handles.protocols import AsyncHandle, SyncHandle
from outrider.producer.outbox import Outbox
from outrider.producer.payload_codec import PayloadCodec
from outrider.producer.position import START, Position
from outrider.producer.statement import Statement
from outrider.producer.stored_event import EventPage, StoredEvent, stored_event
from outrider.producer.sync_or_async import Queries, Query, run_queries
from outrider.storage import sql_files

if TYPE_CHECKING:
    from outrider.producer.encryption import SubjectEncryption


class ReadOptions(TypedDict, total=False):
    """The keyword arguments of `read`, which documents them."""

    after: Position | None
    category: str | Collection[str] | None
    event_types: str | Collection[str] | None


class LogReader:
    def __init__(
        self, outbox: Outbox, *, types: EventTypes | None = None, codec: PayloadCodec | SubjectEncryption | None = None
    ) -> None:
        self.outbox = outbox
        self.types = types
        self.codec = codec
        queries = sql_files.queries_of(outbox.schema)
        self._statements = {name: Statement(queries[name]) for name in self._queries()}

    @overload
    def read(
        self, handle: AsyncHandle, *, limit: int = 500, **options: Unpack[ReadOptions]
    ) -> Awaitable[EventPage]: ...

    @overload
    def read(self, handle: SyncHandle, *, limit: int = 500, **options: Unpack[ReadOptions]) -> EventPage: ...

    def read(
        self,
        handle: Any,
        *,
        after: Position | None = None,
        category: str | Collection[str] | None = None,
        event_types: str | Collection[str] | None = None,
        limit: int = 500,
    ) -> Any:
        """
        Events of the log after a position, in order: an EventPage, or an awaitable of one.

        after        `next_position` of the page before, or the position of an event; None reads from the beginning
        category     only streams of this category, or of these: the stream's name up to the first colon
        event_types  only events of this type, or of these; globs such as 'order.*'
        limit        at most so many events

        EpochError: the log was restored from another server and needs a new epoch (`outrider events new-epoch`).
        """
        return run_queries(handle, self._read(after or START, _names(category), _names(event_types), limit))

    @overload
    def iterate_log(
        self, handle: AsyncHandle, *, chunk_size: int = 500, **options: Unpack[ReadOptions]
    ) -> AsyncIterator[StoredEvent]: ...

    @overload
    def iterate_log(
        self, handle: SyncHandle, *, chunk_size: int = 500, **options: Unpack[ReadOptions]
    ) -> Iterator[StoredEvent]: ...

    def iterate_log(self, handle: Any, *, chunk_size: int = 500, **options: Unpack[ReadOptions]) -> Any:
        """
        The events that `read` returns, up to the end of the log, read in chunks: an iterator, or an asynchronous one.
        """
        if adapter_for(handle).is_async:
            return self._iterate_log_async(handle, chunk_size, options)
        return self._iterate_log(handle, chunk_size, options)

    @overload
    def end(self, handle: AsyncHandle) -> Awaitable[Position]: ...

    @overload
    def end(self, handle: SyncHandle) -> Position: ...

    def end(self, handle: Any) -> Any:
        """The end of the log: a read after this position returns only events that cannot be read yet."""
        return run_queries(handle, self._end())

    def _read(
        self, after: Position, categories: list[str] | None, event_types: list[str] | None, limit: int
    ) -> Queries[EventPage]:
        parameters: dict[str, Any] = {
            "after_epoch": str(after.epoch),
            "after_transaction": str(after.transaction_id),
            "after_number": str(after.number),
            "event_types": None if event_types is None else [like_pattern(each) for each in event_types],
            "limit": str(limit),
        }
        name = "read_events"
        if categories is not None:
            name, parameters["categories"] = "read_category_events", categories
        rows = yield Query(self._statements[name], parameters)
        epoch, transaction_id, restored = rows[0][:3]
        if restored:
            raise EpochError
        events = yield from self._events([row[3:] for row in rows if row[3] is not None])
        if len(events) < limit:
            return EventPage(events, max(after, Position(epoch, transaction_id, 0)))
        return EventPage(events, events[-1].position if events else after)

    def _end(self) -> Queries[Position]:
        page = yield from self._read(START, [], None, 1)
        return page.next_position

    def _events(self, rows: Sequence[Sequence[Any]]) -> Queries[list[StoredEvent]]:
        """The events of rows of `stored_columns`."""
        encoded = yield from self._decode([row[4:7] for row in rows])
        return [stored_event(row, each, self.types) for row, each in zip(rows, encoded, strict=True)]

    def _decode(self, stored: Iterable[Sequence[Any]]) -> Queries[list[Encoded]]:
        """Stored payloads (with content type and encoding) as they were before the codec encoded them."""
        payloads = [Encoded(bytes(payload), kind, encoding) for payload, kind, encoding in stored]
        codec = self.codec
        if codec is None:
            return payloads
        # A codec that needs keys has them looked up for all payloads at once.
        bound = (yield from codec.for_reading(payloads)) if hasattr(codec, "for_reading") else codec
        return [bound.decode(each) for each in payloads]

    def _encode(self, payloads: Sequence[tuple[Encoded, str | None]]) -> Queries[list[Encoded]]:
        """Payloads, each with its subject, as the codec encodes them."""
        codec = self.codec
        if codec is None:
            return [payload for payload, _ in payloads]
        subjects = [subject for _, subject in payloads]
        bound = (yield from codec.for_writing(subjects)) if hasattr(codec, "for_writing") else codec
        return [bound.encode(*each) for each in payloads]

    def _iterate_log(self, handle: Any, chunk_size: int, options: ReadOptions) -> Iterator[StoredEvent]:
        while page := self.read(handle, **options, limit=chunk_size):
            yield from page
            options = {**options, "after": page.next_position}

    async def _iterate_log_async(
        self, handle: Any, chunk_size: int, options: ReadOptions
    ) -> AsyncIterator[StoredEvent]:
        while page := await self.read(handle, **options, limit=chunk_size):
            for event in page:
                yield event
            options = {**options, "after": page.next_position}

    @classmethod
    def _queries(cls) -> tuple[str, ...]:
        return ("read_events", "read_category_events")


def _names(given: str | Collection[str] | None) -> list[str] | None:
    """A name stands for a collection of one. None: no condition."""
    if given is None:
        return None
    return [given] if isinstance(given, str) else list(dict.fromkeys(given))
