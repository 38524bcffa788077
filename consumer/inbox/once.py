"""
Inbox.once: mark an event as processed by a consumer, in the caller's transaction, and report whether it is new.

One INSERT ... ON CONFLICT DO NOTHING. A second delivery during the first one's transaction waits until that transaction
ends: it is not fresh after a commit, and fresh after a rollback. At REPEATABLE READ or stricter, PostgreSQL raises a
serialization failure in the waiting transaction instead; retry it like any other.

Outside a transaction the mark would be committed before the effects, and failed effects would be lost. So once() raises
OutsideTransactionError there.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from typing import Any
from uuid import UUID

from outrider.consumer.inbox.savepoints import async_in_transaction, async_savepoint, savepoint
from outrider.consumer.inbox.sync_or_async_context import SyncOrAsyncContext
from outrider.producer.handles import Adapter, adapter_for, no_guard
from outrider.producer.outbox import OutsideTransactionError
from outrider.producer.statement import Statement
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

    def once(
        self,
        handle: Any,
        consumer: str,
        event_id: UUID | str,
        *,
        undo: bool = True,
        replay_id: UUID | str | None = None,
    ) -> SyncOrAsyncContext[bool]:
        """
        A context manager around the effects of an event. Yields True if the effects are still to be applied.

        handle    the transaction of the effects: any handle that the producer accepts
        consumer  name of the consumer; each consumer of an event has its own mark
        event_id  the message_id of a message from the outbox, or any other identity of the event. All spellings of
                  a UUID are the same event
        undo      an exception in the block rolls mark and effects back to a savepoint, so the caller may continue and
                  commit. False saves two round trips; use it if an exception always rolls the transaction back
        replay_id the header of that name, if the event is to be applied once more in each replay
        """
        adapter = adapter_for(handle)
        parameters = {
            "consumer": _checked("consumer", consumer, LONGEST_CONSUMER),
            "event_id": _checked("event_id", _mark(event_id, replay_id), LONGEST_EVENT_ID),
        }
        name = f"{type(handle).__module__}.{type(handle).__qualname__}"
        if adapter.is_async:
            return SyncOrAsyncContext(name, None, lambda: self._once_async(adapter, handle, parameters, undo))
        return SyncOrAsyncContext(name, lambda: self._once(adapter, handle, parameters, undo), None)

    @contextmanager
    def _once(self, adapter: Adapter, handle: Any, parameters: dict[str, str], undo: bool) -> Iterator[bool]:
        _require_transaction(adapter.in_transaction(handle))
        with savepoint(adapter, handle) if undo else nullcontext():
            yield bool(adapter.fetch(handle, self._mark, parameters, no_guard))

    @asynccontextmanager
    async def _once_async(
        self, adapter: Adapter, handle: Any, parameters: dict[str, str], undo: bool
    ) -> AsyncIterator[bool]:
        _require_transaction(await async_in_transaction(adapter, handle))
        async with async_savepoint(adapter, handle) if undo else nullcontext():
            yield bool(await adapter.fetch(handle, self._mark, parameters, no_guard))


def _require_transaction(in_transaction: bool) -> None:
    if not in_transaction:
        raise OutsideTransactionError(
            "inbox.once outside a transaction would commit the mark before the effects: begin a transaction around both"
        )


def _canonical(event_id: Any) -> Any:
    """Every spelling of a UUID becomes PostgreSQL's; any other value is returned unchanged."""
    if isinstance(event_id, str):
        try:
            return str(UUID(event_id))
        except ValueError:
            return event_id
    return str(event_id) if isinstance(event_id, UUID) else event_id


def _mark(event_id: Any, replay_id: Any) -> Any:
    """What is stored: the event's id, in a replay followed by the id of the replay."""
    event_id = _canonical(event_id)
    return event_id if replay_id is None or not event_id else f"{event_id} replay {_canonical(replay_id)}"


def _checked(name: str, value: Any, longest: int) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} is a {type(value).__name__}: it must be text that identifies the {name[:8]}")
    if not 1 <= len(value.encode(errors="replace")) <= longest or "\0" in value:
        raise ValueError(f"{name} must be 1 to {longest} bytes of text without NUL")
    return value
