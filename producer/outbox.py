"""
Outbox: enqueue events in the caller's transaction.

One statement per call, through whatever handle the application has. A rolled-back transaction (or savepoint) takes
its messages with it. Nothing is committed here, no connection is opened, and no broker is involved.

With a synchronous handle the methods return their result, with an asynchronous one an awaitable of it.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from operator import itemgetter
from typing import Any, Literal, NamedTuple, TypeVar, Unpack, get_args, overload
from uuid import UUID

from outrider.errors import OutboxError
from outrider.producer.context import ALL_BUT_LOGS, Context
from outrider.producer.event import (
    AGGREGATE,
    Aggregate,
    Event,
    EventOptions,
    OrderingKey,
    Row,
    When,
    can_be_copied,
    is_delayed,
    parse_event_id,
    parse_event_ids,
    to_columns,
)
from outrider.producer.handles import Adapter, adapter_for
from outrider.producer.handles.protocols import AsyncHandle, SyncHandle
from outrider.producer.statement import Statement
from outrider.storage.sql_files import Queries

OutsideTransaction = Literal["warn", "raise", "allow"]


class OutsideTransactionWarning(UserWarning):
    """A message was enqueued outside a transaction: it is sent whatever becomes of the work around it."""


class OutsideTransactionError(OutboxError):
    """A message was to be enqueued outside a transaction, and the outbox is set to refuse that."""


class Receipt(NamedTuple):
    """One message is in the outbox, or was already there."""

    event_id: UUID
    """Its identity: the AMQP message_id, by which consumers can deduplicate."""
    new: bool | None
    """False: a message with the same dedup_key is pending, and nothing was written. None: a pipeline will tell."""


class BatchReceipt(NamedTuple):
    """Many messages are in the outbox."""

    event_ids: list[UUID]
    """In the order of the messages."""
    written: int | None
    """How many rows were written: fewer than messages where a dedup_key was pending. None: a pipeline will tell."""


class Outbox:
    """
    The outbox of one PostgreSQL schema.

    exchange             where events go that name no exchange; '' is the broker's default exchange
    schema               the PostgreSQL schema of the outbox tables
    context              what travels along: traces, tracking ids, log context (see producer.context); None for nothing
    outside_transaction  what a publish outside a transaction does: 'warn' (write, with a warning), 'raise' or 'allow'

    An instance is immutable and can be shared between threads and tasks.
    """

    def __init__(
        self,
        exchange: str = "",
        *,
        schema: str = "public",
        context: Context | None = ALL_BUT_LOGS,
        outside_transaction: OutsideTransaction = "warn",
    ) -> None:
        if outside_transaction not in get_args(OutsideTransaction):
            raise ValueError(f"outside_transaction is one of {', '.join(get_args(OutsideTransaction))}")
        self.exchange = exchange
        self.schema = schema
        self.context = context
        self.outside_transaction = outside_transaction
        queries = Queries(schema)
        self._statements = {name: Statement(queries[name]) for name in _QUERIES}
        self._copied_values = itemgetter(*(name.strip() for name in queries["copied_columns"].split(",")))

    @overload
    def publish(
        self, handle: AsyncHandle, event_type: str, payload: Any, **options: Unpack[EventOptions]
    ) -> Awaitable[Receipt]: ...

    @overload
    def publish(
        self, handle: SyncHandle, event_type: str, payload: Any, **options: Unpack[EventOptions]
    ) -> Receipt: ...

    def publish(
        self,
        handle: Any,
        event_type: str,
        payload: Any,
        *,
        aggregate: Aggregate | None = None,
        ordering_key: OrderingKey = AGGREGATE,
        routing_key: str | None = None,
        exchange: str | None = None,
        headers: Mapping[str, Any] | None = None,
        deliver_after: When | None = None,
        expires: When | None = None,
        dedup_key: str | None = None,
        event_id: UUID | str | None = None,
    ) -> Any:
        """
        Enqueue one event; returns a Receipt, or an awaitable of one.

        event_type     what happened, e.g. 'order.placed': the AMQP type
        payload        bytes and str as they are; anything else as JSON
        aggregate      what it happened to: ('order', 42) or 'order:42'; travels in the headers
        ordering_key   events of a key are delivered in commit order; the aggregate by default, None for no order
        routing_key    the event type by default
        exchange       the outbox's exchange by default
        headers        AMQP headers
        deliver_after  not before then: a datetime, or a timedelta or seconds from now. Such a message has no order: the
                       default is dropped, an ordering_key raises ValueError
        expires        dead after then, if not delivered: likewise
        dedup_key      at most one pending message per key
        event_id       the identity of the message; a random UUID by default
        """
        identity = parse_event_id(event_id)
        event = Event(
            event_type=event_type,
            payload=payload,
            aggregate=aggregate,
            ordering_key=ordering_key,
            routing_key=routing_key,
            exchange=exchange,
            headers=headers,
            deliver_after=deliver_after,
            expires=expires,
            dedup_key=dedup_key,
        )
        row = event.row(exchange=self.exchange, context=self.context, event_id=identity)
        return self.enqueue_row(handle, row, identity)

    @overload
    def publish_many(
        self, handle: AsyncHandle, messages: Iterable[Event | Mapping[str, Any]]
    ) -> Awaitable[BatchReceipt]: ...

    @overload
    def publish_many(self, handle: SyncHandle, messages: Iterable[Event | Mapping[str, Any]]) -> BatchReceipt: ...

    def publish_many(self, handle: Any, messages: Iterable[Event | Mapping[str, Any]]) -> Any:
        """
        Enqueue many events, in their order, in a round trip or two; by COPY, where psycopg 3 and the events allow it.

        A message is an Event, or a mapping of its fields. Returns a BatchReceipt, or an awaitable of one.
        """
        events = [message if isinstance(message, Event) else Event(**message) for message in messages]
        context = None if self.context is None else self.context.now()
        event_ids = parse_event_ids(event.event_id for event in events)
        rows = [
            event.row(exchange=self.exchange, context=context, event_id=event_id)
            for event, event_id in zip(events, event_ids, strict=True)
        ]
        return self.enqueue_rows(handle, rows, event_ids)

    def enqueue_row(self, handle: Any, row: Row, event_id: UUID | None = None, *, wait: bool = True) -> Any:
        """
        Write one row as it is: for adapters that build their own.

        event_id  the row's, where it is at hand
        wait      False: where the handle allows it, the answer is not waited for (see outrider.producer.handles.in_flight)
        """
        event_id = event_id or UUID(row["event_id"])
        adapter = adapter_for(handle)
        statement = self._statements[_query_for(row)]
        if not wait and (send := adapter.sender(handle)) is not None:
            send(statement, row)
            return Receipt(event_id, _is_new(row, NOT_KNOWN_YET))
        written = adapter.execute(handle, statement, row, self.guard)
        if adapter.is_async:
            return _then(written, lambda count: Receipt(event_id, _is_new(row, count)))
        return Receipt(event_id, _is_new(row, written))

    def enqueue_rows(self, handle: Any, rows: list[Row], event_ids: list[UUID] | None = None) -> Any:
        """Write many rows as they are."""
        ids = event_ids or [UUID(row["event_id"]) for row in rows]
        adapter = adapter_for(handle)
        writes = self._writes(adapter, handle, rows, ids)
        if adapter.is_async:

            async def write() -> BatchReceipt:
                return BatchReceipt(ids, _total([await each() for each in writes]))

            return write()
        return BatchReceipt(ids, _total([each() for each in writes]))

    def _writes(self, adapter: Adapter, handle: Any, rows: list[Row], ids: list[UUID]) -> list[Callable[[], Any]]:
        """What writes these rows, in order; each returns a count, or an awaitable of one."""
        if rows and all(map(can_be_copied, rows)) and (copy := adapter.copier(handle)) is not None:
            values = ((event_id.bytes, *self._copied_values(row)) for event_id, row in zip(ids, rows, strict=True))
            return [partial(copy, self._statements["enqueue_copy"], values, self.guard)]
        batches = (
            ("enqueue_many", [row for row in rows if not is_delayed(row)]),
            ("enqueue_many_delayed", [row for row in rows if is_delayed(row)]),
        )
        return [
            partial(adapter.execute, handle, self._statements[name], to_columns(batch), self.guard)
            for name, batch in batches
            if batch
        ]

    def guard(self, in_transaction: bool) -> None:
        """Refuse or warn of what happens outside a transaction, as set."""
        if in_transaction or self.outside_transaction == "allow":
            return
        text = "a message is enqueued outside a transaction: it is sent whatever becomes of the work around it"
        if self.outside_transaction == "raise":
            raise OutsideTransactionError(text)
        warnings.warn(text, OutsideTransactionWarning, stacklevel=callers_level())


_QUERIES = (
    *("enqueue", "enqueue_plain", "enqueue_once", "enqueue_delayed"),
    *("enqueue_many", "enqueue_many_delayed", "enqueue_copy"),
)
_PACKAGE = __name__.partition(".")[0]

NOT_KNOWN_YET = -1
"""As a number of rows: the answer has not come yet."""

T = TypeVar("T")
R = TypeVar("R")


async def _then(awaitable: Awaitable[T], make: Callable[[T], R]) -> R:
    return make(await awaitable)


def _query_for(row: Row) -> str:
    """The cheapest of the statements that write one row."""
    if is_delayed(row):
        return "enqueue_delayed"
    if row["dedup_key"] is not None:
        return "enqueue_once"
    if (
        row["aggregate_type"] is row["ordering_key"] is row["context"] is row["expires_at"] is None
        and row["expires_in_seconds"] is None
    ):
        return "enqueue_plain"
    return "enqueue"


def _is_new(row: Row, written: int) -> bool | None:
    if row["dedup_key"] is None:
        return True
    return None if written < 0 else written > 0


def _total(counts: list[int]) -> int | None:
    return None if any(count < 0 for count in counts) else sum(counts)


def callers_level(*between: str) -> int:
    """The stack level of the application's call, for a warning that points there; `between` are packages on the way."""
    ours = (_PACKAGE, *between)
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in ours:
        frame, level = frame.f_back, level + 1
    return level
