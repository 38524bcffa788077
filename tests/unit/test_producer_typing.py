"""
A type checker knows what a publish gives: the result with a synchronous handle, an awaitable with an asynchronous one.

`checked_by_mypy` is never called: `make check` fails when one of its lines is not true.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Iterator
from typing import TYPE_CHECKING, Any, assert_type

import asyncpg  # type: ignore[import-untyped]
import psycopg
import pytest
import sqlalchemy
from sqlalchemy import orm
from sqlalchemy.ext import asyncio as sqlalchemy_asyncio

from outrider import (
    Aggregate,
    BatchReceipt,
    EventPage,
    EventStreams,
    Outbox,
    Position,
    Receipt,
    Repository,
    Snapshot,
    StoredEvent,
)
from outrider.producer.handles import _adapter_for_class

if TYPE_CHECKING:
    import psycopg2
    from django.db.backends.base.base import BaseDatabaseWrapper


def checked_by_mypy(
    outbox: Outbox,
    streams: EventStreams,
    connection: psycopg.Connection[Any],
    cursor: psycopg.Cursor[tuple[int]],
    session: orm.Session,
    scoped: orm.scoped_session[orm.Session],
    engine_connection: sqlalchemy.Connection,
    django: BaseDatabaseWrapper,
    old_connection: psycopg2.extensions.connection,
    async_connection: psycopg.AsyncConnection[Any],
    async_cursor: psycopg.AsyncCursor[Any],
    async_session: sqlalchemy_asyncio.AsyncSession,
    async_engine_connection: sqlalchemy_asyncio.AsyncConnection,
    async_scoped: sqlalchemy_asyncio.async_scoped_session[sqlalchemy_asyncio.AsyncSession],
) -> None:
    assert_type(outbox.publish(connection, "a", {}, aggregate=("order", 42)), Receipt)
    assert_type(outbox.publish(cursor, "a", {}), Receipt)
    assert_type(outbox.publish(session, "a", {}), Receipt)
    assert_type(outbox.publish(scoped, "a", {}), Receipt)
    assert_type(outbox.publish(engine_connection, "a", {}), Receipt)
    assert_type(outbox.publish("default", "a", {}), Receipt)
    assert_type(outbox.publish(django, "a", {}), Receipt)
    assert_type(outbox.publish(old_connection, "a", {}), Receipt)
    assert_type(outbox.publish(old_connection.cursor(), "a", {}), Receipt)

    assert_type(outbox.publish(async_connection, "a", {}, deliver_after=60), Awaitable[Receipt])
    assert_type(outbox.publish(async_cursor, "a", {}), Awaitable[Receipt])
    assert_type(outbox.publish(async_session, "a", {}), Awaitable[Receipt])
    assert_type(outbox.publish(async_engine_connection, "a", {}), Awaitable[Receipt])
    assert_type(outbox.publish(async_scoped, "a", {}), Awaitable[Receipt])

    assert_type(outbox.publish_many(session, []), BatchReceipt)
    assert_type(outbox.publish_many(async_session, []), Awaitable[BatchReceipt])
    assert_type(streams.append(connection, "order:42", [], expected_version=3), int)
    assert_type(streams.append(async_connection, "order:42", []), Awaitable[int])
    assert_type(streams.load(connection, "order:42"), list[StoredEvent])
    assert_type(streams.load(async_connection, "order:42"), Awaitable[list[StoredEvent]])
    assert_type(streams.read(connection, category="order"), EventPage)
    assert_type(streams.read(async_connection, limit=10), Awaitable[EventPage])
    assert_type(streams.iterate_log(connection), Iterator[StoredEvent])
    assert_type(streams.iterate_log(async_connection), AsyncIterator[StoredEvent])
    assert_type(streams.end(connection), Position)
    assert_type(streams.last_version(async_connection, "order:42"), Awaitable[int])
    assert_type(streams.exists(connection, "order:42"), bool)
    assert_type(streams.load_snapshot(connection, "order:42"), Snapshot | None)
    orders = Repository(streams, Aggregate, category="order")
    assert_type(orders.load(connection, 42), Aggregate)
    assert_type(orders.execute(async_connection, 42, print), Awaitable[Aggregate])
    assert_type(streams.iterate(connection, "order:42"), Iterator[StoredEvent])
    assert_type(streams.iterate(async_connection, "order:42"), AsyncIterator[StoredEvent])
    assert_type(streams.replay(connection, stream="order:42"), int)
    assert_type(streams.replay(async_connection, event_type="a"), Awaitable[int])

    outbox.publish(42, "a", {})  # type: ignore[call-overload]
    outbox.publish(connection, "a", {}, agregate="order:42")  # type: ignore[call-overload]


@pytest.mark.parametrize(
    "kind",
    [
        psycopg.Connection,
        psycopg.Cursor,
        psycopg.AsyncConnection,
        psycopg.AsyncCursor,
        sqlalchemy.Connection,
        orm.Session,
        sqlalchemy_asyncio.AsyncConnection,
        sqlalchemy_asyncio.AsyncSession,
        asyncpg.Connection,
    ],
)
def test_the_protocol_of_a_handle_agrees_with_its_adapter(kind: Any) -> None:
    adapter = _adapter_for_class(kind)
    assert adapter is not None
    assert inspect.iscoroutinefunction(kind.execute) == adapter.is_async
    assert hasattr(kind, "__enter__") != adapter.is_async
