"""
Outbox: enqueue events in the caller's transaction.

    from outrider import Outbox

    outbox = Outbox(exchange="shop")
    outbox.publish(connection, "order.placed", {"order": 42}, aggregate=("order", 42))

Each call runs one statement on the handle that the application passes. A rollback of the transaction, or to a savepoint
before the call, removes the message. Nothing here commits, opens a connection or talks to a broker.

With a synchronous handle the methods return their result, with an asynchronous one an awaitable of it.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import datetime
from functools import partial
from operator import itemgetter
from typing import Any, Literal, NamedTuple, Unpack, get_args, overload
from uuid import UUID

from outrider.errors import OutboxError
from outrider.producer.context import ALL_BUT_LOGS, Context
from outrider.producer.event import (
    AGGREGATE,
    Aggregate,
    Delay,
    Event,
    EventOptions,
    OrderingKey,
    When,
    parse_event_id,
    parse_event_ids,
    split_moment,
)
from outrider.producer.handles import adapter_for
from outrider.producer.handles.protocols import AsyncHandle, SyncHandle
from outrider.producer.row import Row, can_be_copied, is_delayed, query_for, to_columns, uuid_bytes
from outrider.producer.statement import Statement
from outrider.storage.message import DEFAULT_EXCHANGE
from outrider.storage.sql_files import queries_of

OutsideTransaction = Literal["warn", "raise", "allow"]


class OutsideTransactionWarning(UserWarning):
    """A message was enqueued outside a transaction: it is sent even if the work around it fails."""


class OutsideTransactionError(OutboxError):
    """A message was enqueued outside a transaction, and `outside_transaction` is 'raise'."""


class Receipt(NamedTuple):
    """The result of enqueuing one message."""

    event_id: UUID
    """The AMQP message_id, by which consumers can deduplicate."""
    new: bool | None
    """False: a message with the same dedup_key is pending, and nothing was written. None: not known yet (psycopg's
    pipeline mode)."""


class BatchReceipt(NamedTuple):
    """The result of enqueuing many messages."""

    event_ids: list[UUID]
    """In the order of the messages."""
    written: int | None
    """The number of rows written: fewer than messages where a dedup_key was pending. None: not known yet (psycopg's
    pipeline mode)."""


class Outbox:
    """
    The outbox of one PostgreSQL schema.

    exchange             the exchange of events that name none: amq.topic, where consumers without an exchange of their
                         own listen too; '' is the broker's default exchange
    schema               the PostgreSQL schema of the outbox tables
    expires              the `expires` of events that name none, from their publish on: seconds, a timedelta, or text
                         such as '1h'; None: they do not expire. Not for event streams
    context              traces, tracking ids and log context that messages carry (see outrider.producer.context); None
                         for none
    outside_transaction  what a publish outside a transaction does: 'warn' (write, with a warning), 'raise' or 'allow'

    An instance is immutable and can be shared between threads and tasks.
    """

    def __init__(
        self,
        exchange: str = DEFAULT_EXCHANGE,
        *,
        schema: str = "public",
        expires: Delay | None = None,
        context: Context | None = ALL_BUT_LOGS,
        outside_transaction: OutsideTransaction = "warn",
    ) -> None:
        if outside_transaction not in get_args(OutsideTransaction):
            raise ValueError(f"outside_transaction is one of {', '.join(get_args(OutsideTransaction))}")
        if isinstance(expires, datetime):
            raise TypeError("the expires of an outbox counts from each publish: give seconds, a timedelta or text")
        split_moment("expires", expires)
        self.exchange = exchange
        self.schema = schema
        self.expires = expires
        self.context = context
        self.outside_transaction = outside_transaction
        queries = queries_of(schema)
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

        event_type     the AMQP type, e.g. 'order.placed'
        payload        bytes and str as they are; anything else as JSON
        aggregate      the object that the event is about: ('order', 42) or 'order:42'; sent in the headers
        ordering_key   events of a key are delivered in commit order; the aggregate by default, None for no order
        routing_key    the event type by default
        exchange       the outbox's exchange by default
        headers        AMQP headers
        deliver_after  the earliest time of delivery: a datetime; or from now a timedelta, seconds, or text such as
                       '90s'. Such a message has no order: it does not get the default ordering_key, and another one
                       raises ValueError
        expires        a message that is not delivered by then becomes a dead letter; given like deliver_after, and
                       later than it. The outbox's `expires` by default
        dedup_key      nothing is written while a message with the same key is pending
        event_id       the AMQP message_id; a random UUID by default
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
        row = event.row(exchange=self.exchange, context=self.context, event_id=identity, expires=self.expires)
        written = self.write_row(handle, row)
        if isinstance(written, int):
            return Receipt(identity, _is_new(dedup_key, written))
        return _receipt_async(identity, dedup_key, written)

    @overload
    def publish_many(
        self, handle: AsyncHandle, messages: Iterable[Event | Mapping[str, Any]]
    ) -> Awaitable[BatchReceipt]: ...

    @overload
    def publish_many(self, handle: SyncHandle, messages: Iterable[Event | Mapping[str, Any]]) -> BatchReceipt: ...

    def publish_many(self, handle: Any, messages: Iterable[Event | Mapping[str, Any]]) -> Any:
        """
        Enqueue many events, in the given order, in one or two round trips; by COPY, where psycopg 3 and the events
        allow it.

        A message is an Event, or a mapping of its fields. Returns a BatchReceipt, or an awaitable of one.
        """
        events = [message if isinstance(message, Event) else Event(**message) for message in messages]
        context = None if self.context is None else self.context.now()
        event_ids = parse_event_ids(event.event_id for event in events)
        rows = [
            event.row(exchange=self.exchange, context=context, event_id=event_id, expires=self.expires)
            for event, event_id in zip(events, event_ids, strict=True)
        ]
        written = self.write_rows(handle, rows)
        if isinstance(written, int):
            return BatchReceipt(event_ids, None if written < 0 else written)
        return _batch_receipt_async(event_ids, written)

    def write_row(self, handle: Any, row: Row) -> Any:
        """Write one row that was built already. Returns the number of rows written, or an awaitable of it."""
        return adapter_for(handle).execute(handle, self._statements[query_for(row)], row, self.guard)

    def write_rows(self, handle: Any, rows: list[Row]) -> Any:
        """Write many rows, as write_row does; by COPY, where the handle and the rows allow it."""
        adapter = adapter_for(handle)
        if rows and all(map(can_be_copied, rows)) and (copy := adapter.copier(handle)) is not None:
            values = ((uuid_bytes(row["event_id"]), *self._copied_values(row)) for row in rows)
            return copy(self._statements["enqueue_copy"], values, self.guard)
        batches = {
            "enqueue_many": [row for row in rows if not is_delayed(row)],
            "enqueue_many_delayed": [row for row in rows if is_delayed(row)],
        }
        writes: list[Callable[[], Any]] = [
            partial(adapter.execute, handle, self._statements[name], to_columns(batch), self.guard)
            for name, batch in batches.items()
            if batch
        ]
        if adapter.is_async:
            return _add_up_async(writes)
        return _add_up([write() for write in writes])

    def guard(self, in_transaction: bool) -> None:
        """Apply `outside_transaction`. Adapters call this before they write."""
        if in_transaction or self.outside_transaction == "allow":
            return
        text = "a message is enqueued outside a transaction: it is sent even if the work around it fails"
        if self.outside_transaction == "raise":
            raise OutsideTransactionError(text)
        warnings.warn(text, OutsideTransactionWarning, stacklevel=application_stack_level())


_QUERIES = (
    *("enqueue", "enqueue_plain", "enqueue_once", "enqueue_delayed"),
    *("enqueue_many", "enqueue_many_delayed", "enqueue_copy"),
)
_PACKAGE = __name__.partition(".")[0]


def _is_new(dedup_key: str | None, written: int) -> bool | None:
    if dedup_key is None:
        return True
    return None if written < 0 else written > 0


async def _receipt_async(event_id: UUID, dedup_key: str | None, written: Awaitable[int]) -> Receipt:
    return Receipt(event_id, _is_new(dedup_key, await written))


async def _batch_receipt_async(event_ids: list[UUID], written: Awaitable[int]) -> BatchReceipt:
    count = await written
    return BatchReceipt(event_ids, None if count < 0 else count)


def _add_up(counts: list[int]) -> int:
    """-1 where one of the counts is not known yet."""
    return -1 if any(count < 0 for count in counts) else sum(counts)


async def _add_up_async(writes: list[Callable[[], Awaitable[int]]]) -> int:
    return _add_up([await write() for write in writes])


def application_stack_level(*skipped_packages: str) -> int:
    """The `stacklevel` of a warning that points at the application's line: the first frame outside these packages."""
    ours = (_PACKAGE, *skipped_packages)
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in ours:
        frame, level = frame.f_back, level + 1
    return level
