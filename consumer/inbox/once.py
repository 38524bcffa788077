"""
Inbox.once: whether an event is fresh for a consumer, and its mark, in the caller's transaction.

One INSERT ... ON CONFLICT DO NOTHING. A second delivery that comes while the first is being processed waits for the end
of its transaction: it is not fresh if that committed, and fresh if it was rolled back. In a transaction that is
REPEATABLE READ or stricter, PostgreSQL ends the one that waited with a serialization failure instead: it is then to be
tried again, like any other of these.

Outside a transaction the mark would be committed before the effects, and an effect that failed would be lost: refused.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from typing import Any
from uuid import UUID

from outrider.consumer.inbox.block import Block
from outrider.consumer.inbox.savepoints import async_in_transaction, async_savepoint, savepoint
from outrider.producer.handles import Adapter, adapter_for
from outrider.producer.outbox import OutsideTransactionError
from outrider.producer.statement import Statement
from outrider.producer.sync_or_async import unguarded
from outrider.storage.sql_files import Queries

LONGEST_CONSUMER = 255
LONGEST_EVENT_ID = 1000


class Inbox:
    """
    The inbox of one PostgreSQL schema, in the database of the consumer's effects.

    An instance is immutable and can be shared between threads and tasks.
    """

    def __init__(self, *, schema: str = "public") -> None:
        self.schema = schema
        self._mark = Statement(Queries(schema)["mark_processed"])

    def once(self, handle: Any, consumer: str, event_id: UUID | str, *, undo: bool = True) -> Block[bool]:
        """
        A block around the effects of an event; gives whether the consumer has yet to apply them.

        handle    the transaction of the effects: any handle that the producer accepts
        consumer  who processes: every consumer of an event has its own mark
        event_id  the message_id of a message from the outbox, or whatever identifies the event. UUIDs are the same
                  however they are written
        undo      an exception in the block undoes mark and effects by a savepoint, also where the caller goes on and
                  commits. False saves two round trips where an exception is sure to end the transaction
        """
        adapter = adapter_for(handle)
        parameters = {
            "consumer": _checked("consumer", consumer, LONGEST_CONSUMER),
            "event_id": _checked("event_id", _canonical(event_id), LONGEST_EVENT_ID),
        }
        what = f"{type(handle).__module__}.{type(handle).__qualname__}"
        if adapter.is_async:
            return Block(what, None, lambda: self._once_async(adapter, handle, parameters, undo))
        return Block(what, lambda: self._once(adapter, handle, parameters, undo), None)

    @contextmanager
    def _once(self, adapter: Adapter, handle: Any, parameters: dict[str, str], undo: bool) -> Iterator[bool]:
        _refuse_outside(adapter.in_transaction(handle))
        with savepoint(adapter, handle) if undo else nullcontext():
            yield bool(adapter.fetch(handle, self._mark, parameters, unguarded))

    @asynccontextmanager
    async def _once_async(
        self, adapter: Adapter, handle: Any, parameters: dict[str, str], undo: bool
    ) -> AsyncIterator[bool]:
        _refuse_outside(await async_in_transaction(adapter, handle))
        async with async_savepoint(adapter, handle) if undo else nullcontext():
            yield bool(await adapter.fetch(handle, self._mark, parameters, unguarded))


def _refuse_outside(in_transaction: bool) -> None:
    if not in_transaction:
        raise OutsideTransactionError(
            "inbox.once outside a transaction would mark the event before its effects are there: begin a transaction "
            "around both"
        )


def _canonical(event_id: Any) -> Any:
    """A UUID as PostgreSQL writes it, so that its spelling does not matter; anything else as it is."""
    if isinstance(event_id, str):
        try:
            return str(UUID(event_id))
        except ValueError:
            return event_id
    return str(event_id) if isinstance(event_id, UUID) else event_id


def _checked(name: str, value: Any, longest: int) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} is a {type(value).__name__}: it must be text that identifies the {name[:8]}")
    if not 1 <= len(value.encode(errors="replace")) <= longest or "\0" in value:
        raise ValueError(f"{name} must be 1 to {longest} bytes of text without NUL")
    return value
