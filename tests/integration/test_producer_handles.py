"""
Every handle, the same promises: what is committed is there, what is rolled back is not, savepoints included.

A `Stack` is one way to reach PostgreSQL. Synchronous and asynchronous stacks are driven alike: each is an asynchronous
context manager that gives a handle inside a transaction, and its operations may or may not need to be awaited.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import warnings
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any, NamedTuple
from urllib.parse import urlsplit
from uuid import UUID

import asyncpg  # type: ignore[import-untyped]
import psycopg
import psycopg2
import pytest
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from producer import Event, Outbox, OutsideTransactionError, OutsideTransactionWarning
from tests.fixtures.database import Database
from tests.fixtures.django import django_connection

Savepoint = Callable[[], AbstractAsyncContextManager[Any]]


class Transaction(NamedTuple):
    """A handle inside a transaction that has begun; leaving the block with Rollback undoes it."""

    handle: Any
    savepoint: Savepoint


class Rollback(Exception):
    pass


class Stack(NamedTuple):
    transaction: Callable[[str], AbstractAsyncContextManager[Transaction]]
    autocommit: Callable[[str], AbstractAsyncContextManager[Any]]


async def settled(value: Any) -> Any:
    """The value, awaited where it is awaitable: a synchronous handle returns, an asynchronous one is awaited."""
    return await value if inspect.isawaitable(value) else value


def url_for(dsn: str, driver: str) -> str:
    return urlsplit(dsn)._replace(scheme=f"postgresql+{driver}").geturl()


@asynccontextmanager
async def adopted(block: Any) -> AsyncIterator[Any]:
    """A synchronous context manager in asynchronous clothes."""
    with block as value:
        yield value


# -- the stacks --------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def psycopg_connection(dsn: str) -> AsyncIterator[Transaction]:
    with psycopg.connect(dsn) as connection, connection.transaction():
        yield Transaction(connection, lambda: adopted(connection.transaction()))


@asynccontextmanager
async def psycopg_cursor(dsn: str) -> AsyncIterator[Transaction]:
    with psycopg.connect(dsn, autocommit=True) as connection, connection.transaction(), connection.cursor() as cursor:
        yield Transaction(cursor, lambda: adopted(connection.transaction()))


@asynccontextmanager
async def psycopg_raw_cursor(dsn: str) -> AsyncIterator[Transaction]:
    with (
        psycopg.connect(dsn, cursor_factory=psycopg.RawCursor) as connection,
        connection.transaction(),
        connection.cursor() as cursor,
    ):
        yield Transaction(cursor, lambda: adopted(connection.transaction()))


@asynccontextmanager
async def psycopg_pipeline(dsn: str) -> AsyncIterator[Transaction]:
    with psycopg.connect(dsn, autocommit=True) as connection, connection.pipeline(), connection.transaction():
        yield Transaction(connection, lambda: adopted(connection.transaction()))


@asynccontextmanager
async def psycopg_async_connection(dsn: str) -> AsyncIterator[Transaction]:
    async with await psycopg.AsyncConnection.connect(dsn) as connection, connection.transaction():
        yield Transaction(connection, lambda: connection.transaction())


@asynccontextmanager
async def psycopg_async_cursor(dsn: str) -> AsyncIterator[Transaction]:
    async with await psycopg.AsyncConnection.connect(dsn) as connection, connection.cursor() as cursor:
        yield Transaction(cursor, lambda: connection.transaction())


@asynccontextmanager
async def psycopg_autocommit(dsn: str) -> AsyncIterator[Any]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield connection


@asynccontextmanager
async def psycopg_async_autocommit(dsn: str) -> AsyncIterator[Any]:
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        yield connection


@asynccontextmanager
async def psycopg2_savepoint(connection: Any) -> AsyncIterator[None]:
    cursor = connection.cursor()
    cursor.execute("SAVEPOINT here")
    try:
        yield
    except Rollback:
        cursor.execute("ROLLBACK TO SAVEPOINT here")
        raise


def psycopg2_stack(make_handle: Callable[[Any], Any]) -> Stack:
    @asynccontextmanager
    async def transaction(dsn: str) -> AsyncIterator[Transaction]:
        connection = psycopg2.connect(dsn)
        try:
            with connection:
                yield Transaction(make_handle(connection), lambda: psycopg2_savepoint(connection))
        finally:
            connection.close()

    @asynccontextmanager
    async def autocommit(dsn: str) -> AsyncIterator[Any]:
        connection = psycopg2.connect(dsn)
        connection.autocommit = True
        try:
            yield make_handle(connection)
        finally:
            connection.close()

    return Stack(transaction, autocommit)


@asynccontextmanager
async def asyncpg_connection(dsn: str) -> AsyncIterator[Transaction]:
    connection = await asyncpg.connect(dsn)
    # As many applications do; our rows must not be encoded twice.
    await connection.set_type_codec("json", schema="pg_catalog", encoder=json.dumps, decoder=json.loads)
    try:
        async with connection.transaction():
            yield Transaction(connection, lambda: connection.transaction())
    finally:
        await connection.close()


@asynccontextmanager
async def asyncpg_autocommit(dsn: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(dsn)
    try:
        yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def asyncpg_pool_connection(dsn: str) -> AsyncIterator[Transaction]:
    async with asyncpg.create_pool(dsn, min_size=1) as pool, pool.acquire() as connection, connection.transaction():
        yield Transaction(connection, lambda: connection.transaction())


def sqlalchemy_stack(driver: str, *, session: bool) -> Stack:
    @asynccontextmanager
    async def transaction(dsn: str) -> AsyncIterator[Transaction]:
        engine = create_engine(url_for(dsn, driver), poolclass=NullPool)
        handle: Any
        with Session(engine) if session else engine.connect() as handle, handle.begin():
            yield Transaction(handle, lambda: adopted(handle.begin_nested()))

    @asynccontextmanager
    async def autocommit(dsn: str) -> AsyncIterator[Any]:
        engine = create_engine(url_for(dsn, driver), poolclass=NullPool, isolation_level="AUTOCOMMIT")
        with Session(engine) if session else engine.connect() as handle:
            yield handle

    return Stack(transaction, autocommit)


def sqlalchemy_async_stack(driver: str, *, session: bool) -> Stack:
    @asynccontextmanager
    async def transaction(dsn: str) -> AsyncIterator[Transaction]:
        engine = create_async_engine(url_for(dsn, driver), poolclass=NullPool)
        handle: Any
        async with AsyncSession(engine) if session else engine.connect() as handle, handle.begin():
            yield Transaction(handle, lambda: handle.begin_nested())

    @asynccontextmanager
    async def autocommit(dsn: str) -> AsyncIterator[Any]:
        engine = create_async_engine(url_for(dsn, driver), poolclass=NullPool, isolation_level="AUTOCOMMIT")
        async with AsyncSession(engine) if session else engine.connect() as handle:
            yield handle

    return Stack(transaction, autocommit)


def django_stack(by_alias: bool) -> Stack:
    @asynccontextmanager
    async def transaction(dsn: str) -> AsyncIterator[Transaction]:
        from django.db import transaction as django_transaction

        with django_connection(dsn) as connection, django_transaction.atomic(using="default"):
            handle = "default" if by_alias else connection
            yield Transaction(handle, lambda: adopted(django_transaction.atomic(using="default")))

    @asynccontextmanager
    async def autocommit(dsn: str) -> AsyncIterator[Any]:
        with django_connection(dsn) as connection:
            yield "default" if by_alias else connection

    return Stack(transaction, autocommit)


STACKS = {
    "psycopg connection": Stack(psycopg_connection, psycopg_autocommit),
    "psycopg cursor": Stack(psycopg_cursor, psycopg_autocommit),
    "psycopg raw cursor": Stack(psycopg_raw_cursor, psycopg_autocommit),
    "psycopg pipeline": Stack(psycopg_pipeline, psycopg_autocommit),
    "psycopg async connection": Stack(psycopg_async_connection, psycopg_async_autocommit),
    "psycopg async cursor": Stack(psycopg_async_cursor, psycopg_async_autocommit),
    "psycopg2 connection": psycopg2_stack(lambda connection: connection),
    "psycopg2 cursor": psycopg2_stack(lambda connection: connection.cursor()),
    "asyncpg connection": Stack(asyncpg_connection, asyncpg_autocommit),
    "asyncpg pool connection": Stack(asyncpg_pool_connection, asyncpg_autocommit),
    "sqlalchemy connection, psycopg": sqlalchemy_stack("psycopg", session=False),
    "sqlalchemy session, psycopg": sqlalchemy_stack("psycopg", session=True),
    "sqlalchemy connection, psycopg2": sqlalchemy_stack("psycopg2", session=False),
    "sqlalchemy session, psycopg2": sqlalchemy_stack("psycopg2", session=True),
    "sqlalchemy async connection, asyncpg": sqlalchemy_async_stack("asyncpg", session=False),
    "sqlalchemy async session, asyncpg": sqlalchemy_async_stack("asyncpg", session=True),
    "sqlalchemy async connection, psycopg": sqlalchemy_async_stack("psycopg", session=False),
    "sqlalchemy async session, psycopg": sqlalchemy_async_stack("psycopg", session=True),
    "django alias": django_stack(by_alias=True),
    "django connection": django_stack(by_alias=False),
}

every_stack = pytest.mark.parametrize("stack", STACKS.values(), ids=STACKS.keys())


def rows(database: Database, columns: str = "event_type") -> list[Any]:
    with database.connect() as connection:
        found = connection.execute(f"SELECT {columns} FROM outbox ORDER BY id").fetchall()
    return [row[0] if len(row) == 1 else row for row in found]


@every_stack
def test_what_is_committed_is_in_the_outbox_as_it_went_in(stack: Stack, database: Database) -> None:
    async def scenario() -> Any:
        async with stack.transaction(database.dsn) as (handle, _):
            return await settled(
                Outbox("shop", outside_transaction="raise").publish(
                    handle,
                    "order.placed",
                    {"note": "100 % 'grün' \\ \u0000"},
                    aggregate=("order", 42),
                    headers={"tenant": "a\u0000b", "n": 1},
                    expires=60,
                    dedup_key="k",
                )
            )

    receipt = asyncio.run(scenario())
    assert receipt.new
    [row] = rows(
        database,
        "event_id, event_type, aggregate_type, aggregate_id, ordering_key, exchange, routing_key, payload, "
        "content_type, headers::text, dedup_key, owner, next_attempt_at > clock_timestamp() + interval '20 s', "
        "expires_at BETWEEN clock_timestamp() + interval '40 s' AND clock_timestamp() + interval '60 s'",
    )
    assert row == (
        receipt.event_id,
        "order.placed",
        "order",
        "42",
        "order:42",
        "shop",
        "order.placed",
        b'{"note":"100 % \'gr\xc3\xbcn\' \\\\ \\u0000"}',
        "application/json",
        '{"aggregate_type":"order","aggregate_id":"42","tenant":"a\\u0000b","n":1}',
        "k",
        "relay",
        True,
        True,
    )


@every_stack
def test_what_is_rolled_back_is_not_in_the_outbox(stack: Stack, database: Database) -> None:
    async def scenario() -> None:
        async with stack.transaction(database.dsn) as (handle, _):
            await settled(Outbox().publish(handle, "one", {}))
            await settled(Outbox().publish_many(handle, [Event(event_type="two", payload={})]))
            raise Rollback

    with pytest.raises(Rollback):
        asyncio.run(scenario())
    assert rows(database) == []


@every_stack
def test_a_savepoint_that_is_rolled_back_takes_its_messages_with_it(stack: Stack, database: Database) -> None:
    async def scenario() -> None:
        async with stack.transaction(database.dsn) as (handle, savepoint):
            await settled(Outbox().publish(handle, "before", {}))
            with suppress(Rollback):
                async with savepoint():
                    await settled(Outbox().publish(handle, "undone", {}))
                    await settled(Outbox().publish_many(handle, [{"event_type": "undone too", "payload": {}}]))
                    raise Rollback
            async with savepoint():
                await settled(Outbox().publish(handle, "kept", {}))
            await settled(Outbox().publish(handle, "after", {}))

    asyncio.run(scenario())
    assert rows(database) == ["before", "kept", "after"]


@every_stack
def test_many_messages_are_written_in_their_order_with_delayed_ones_left_to_the_scheduler(
    stack: Stack, database: Database
) -> None:
    messages = [
        Event(event_type=f"type.{n}", payload=bytes([n]) if n % 2 else {"n": n}, aggregate=("order", n % 3))
        for n in range(50)
    ]
    messages.append(Event(event_type="later", payload="text", deliver_after=3600, expires=7200))

    async def scenario() -> Any:
        async with stack.transaction(database.dsn) as (handle, _):
            return await settled(Outbox("shop").publish_many(handle, messages))

    receipt = asyncio.run(scenario())
    assert receipt.event_ids == rows(database, "event_id")
    assert rows(database) == [message.event_type for message in messages]
    assert rows(database, "payload")[:2] == [b'{"n":0}', b"\x01"]
    assert rows(database, "content_encoding")[:2] == ["utf-8", "binary"]
    assert rows(database, "owner, next_attempt_at > clock_timestamp() + interval '59 minutes', expires_at IS NULL")[
        -2:
    ] == [("relay", False, True), ("scheduler", True, False)]


@every_stack
def test_at_most_one_message_per_dedup_key_is_pending(stack: Stack, database: Database) -> None:
    if stack is STACKS["psycopg pipeline"]:
        pytest.skip("not known before the pipeline is synchronised")

    async def scenario() -> list[Any]:
        async with stack.transaction(database.dsn) as (handle, _):
            outbox = Outbox()
            first = await settled(outbox.publish(handle, "one", {}, dedup_key="k"))
            second = await settled(outbox.publish(handle, "two", {}, dedup_key="k"))
            many = [Event(event_type="three", payload={}, dedup_key=key) for key in ("k", "l", "l")]
            return [first.new, second.new, (await settled(outbox.publish_many(handle, many))).written]

    assert asyncio.run(scenario()) == [True, False, 1]
    assert rows(database) == ["one", "three"]


@every_stack
def test_outside_a_transaction_a_publish_warns_or_is_refused_or_is_allowed(stack: Stack, database: Database) -> None:
    async def scenario() -> None:
        async with stack.autocommit(database.dsn) as handle:
            with pytest.raises(OutsideTransactionError):
                await settled(Outbox(outside_transaction="raise").publish(handle, "refused", {}))
            with pytest.warns(OutsideTransactionWarning) as caught:
                await settled(Outbox().publish(handle, "warned", {}))
            assert caught[0].filename == __file__
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                await settled(Outbox(outside_transaction="allow").publish(handle, "allowed", {}))

    asyncio.run(scenario())
    assert rows(database) == ["warned", "allowed"]


def test_a_role_that_may_only_insert_can_publish(database: Database) -> None:
    role = f"only_insert_{database.name}"
    with database.connect() as connection:
        connection.execute(f"CREATE ROLE {role}")
        connection.execute(f"GRANT INSERT ON outbox TO {role}")
        try:
            with connection.transaction():
                connection.execute(f"SET LOCAL ROLE {role}")
                Outbox().publish(connection, "one", {}, dedup_key="k")
                assert not Outbox().publish(connection, "one", {}, dedup_key="k").new
                Outbox().publish(connection, "later", {}, deliver_after=1)
                Outbox().publish_many(
                    connection, [Event(event_type="many", payload={}, deliver_after=d) for d in (None, 1)]
                )
        finally:
            connection.execute(f"DROP OWNED BY {role}")
            connection.execute(f"DROP ROLE {role}")
    assert rows(database) == ["one", "later", "many", "many"]


def test_a_message_that_cannot_be_encoded_leaves_the_transaction_usable(database: Database) -> None:
    with database.connect(autocommit=False) as connection:
        with pytest.raises(TypeError):
            Outbox().publish_many(
                connection, [{"event_type": "a", "payload": 1}, {"event_type": "b", "payload": object()}]
            )
        Outbox().publish(connection, "c", {})
    assert rows(database) == ["c"]


def test_the_hand_over_time_is_the_databases_own(database: Database) -> None:
    with database.connect() as connection:
        connection.execute("ALTER TABLE outbox ALTER COLUMN next_attempt_at SET DEFAULT '2040-01-01 00:00:00+00'")
        with connection.transaction():
            Outbox().publish(connection, "a", {})
            Outbox().publish_many(connection, [Event(event_type="b", payload={})])
    assert rows(database, "next_attempt_at = '2040-01-01 00:00:00+00'") == [True, True]


def test_a_given_event_id_and_another_schema_are_respected(database: Database) -> None:
    from outbox.sqlfiles import script

    event_id = UUID(int=7)
    with database.connect() as connection:
        connection.execute(script("schema.sql", schema="100% other"))
        with connection.transaction():
            receipt = Outbox(schema="100% other").publish(connection, "a", {}, event_id=event_id)
        assert receipt.event_id == event_id
        assert connection.execute('SELECT event_id FROM "100% other".outbox').fetchall() == [(event_id,)]


def test_an_empty_batch_writes_nothing(database: Database) -> None:
    with database.connect(autocommit=False) as connection:
        assert Outbox().publish_many(connection, []) == ([], 0)
