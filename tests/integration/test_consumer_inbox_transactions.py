"""open_transaction with every kind of database: commits at the end, rolls back on an exception."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any

import asyncpg  # type: ignore[import-untyped]
import psycopg
import psycopg2
import pytest
from psycopg_pool import AsyncConnectionPool, ConnectionPool
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import sessionmaker
from sqlalchemy.pool import NullPool

from outrider.consumer.inbox import Inbox, open_transaction
from outrider.consumer.inbox.transactions import is_async
from tests.fixtures.database import Database
from tests.fixtures.django import django_connection
from tests.fixtures.handles import url_for
from tests.fixtures.rows import query, scratch_database

INBOX = Inbox()

MakeDatabase = Callable[[str], AbstractAsyncContextManager[Any]]


class Oops(Exception):
    pass


def without_closing(make: Callable[[str], Any]) -> MakeDatabase:
    """A database that does not have to be closed."""

    @asynccontextmanager
    async def made(dsn: str) -> AsyncIterator[Any]:
        yield make(dsn)

    return made


@asynccontextmanager
async def pool(dsn: str) -> AsyncIterator[Any]:
    with ConnectionPool(dsn, min_size=1) as opened:
        yield opened


@asynccontextmanager
async def autocommit_pool_as_a_function(dsn: str) -> AsyncIterator[Any]:
    with ConnectionPool(dsn, min_size=1, kwargs={"autocommit": True}) as opened:
        yield lambda: opened.connection()


@asynccontextmanager
async def async_pool(dsn: str) -> AsyncIterator[Any]:
    async with AsyncConnectionPool(dsn, min_size=1) as opened:
        yield opened


@asynccontextmanager
async def asyncpg_pool(dsn: str) -> AsyncIterator[Any]:
    async with asyncpg.create_pool(dsn, min_size=1, max_size=1) as opened:
        yield opened


@asynccontextmanager
async def django_alias(dsn: str) -> AsyncIterator[Any]:
    with django_connection(dsn):
        yield "default"


def engine(dsn: str) -> Any:
    return create_engine(url_for(dsn, "psycopg"), poolclass=NullPool)


def async_engine(dsn: str) -> Any:
    return create_async_engine(url_for(dsn, "asyncpg"), poolclass=NullPool)


# How to make it, and whether a function's connection is asynchronous; for all others is_async\(\) knows.
DATABASES: dict[str, tuple[MakeDatabase, bool | None]] = {
    "psycopg pool": (pool, None),
    "psycopg pool, autocommit, by a function": (autocommit_pool_as_a_function, False),
    "psycopg async pool": (async_pool, None),
    "psycopg function": (without_closing(lambda dsn: lambda: psycopg.connect(dsn)), False),
    "psycopg async function": (without_closing(lambda dsn: lambda: psycopg.AsyncConnection.connect(dsn)), True),
    "asyncpg pool": (asyncpg_pool, None),
    "sqlalchemy sessionmaker": (without_closing(lambda dsn: sessionmaker(engine(dsn))), None),
    "sqlalchemy engine": (without_closing(engine), None),
    "sqlalchemy async_sessionmaker": (without_closing(lambda dsn: async_sessionmaker(async_engine(dsn))), None),
    "sqlalchemy async engine": (without_closing(async_engine), None),
    "django alias": (django_alias, None),
}


@pytest.fixture(scope="module")
def scratch(template_database: Database) -> Iterator[Database]:
    with scratch_database(template_database) as database:
        yield database


@pytest.mark.parametrize(("make", "asynchronous"), DATABASES.values(), ids=DATABASES.keys())
def test_a_transaction_is_committed_at_its_end_and_rolled_back_by_an_exception(
    make: MakeDatabase, asynchronous: bool | None, scratch: Database
) -> None:
    async def process(database: Any, event_id: str, error: Exception | None = None) -> bool:
        if asynchronous or is_async(database):
            async with open_transaction(database) as handle, INBOX.once(handle, "c", event_id, undo=False) as fresh:
                if error:
                    raise error
                return fresh
        with open_transaction(database) as handle, INBOX.once(handle, "c", event_id, undo=False) as fresh:
            if error:
                raise error
            return fresh

    async def scenario() -> list[bool]:
        async with make(scratch.dsn) as database:
            assert is_async(database) is None or asynchronous is None
            with suppress(Oops):
                await process(database, "rolled back", Oops())
            return [await process(database, event_id) for event_id in ("rolled back", "committed", "committed")]

    with scratch.connect() as owner:
        owner.execute("TRUNCATE outbox_inbox")
        assert asyncio.run(scenario()) == [True, True, False]
        assert query(owner, "SELECT event_id FROM outbox_inbox ORDER BY 1") == ["committed", "rolled back"]


def test_a_function_that_opens_the_wrong_kind_of_connection_is_refused(scratch: Database) -> None:
    def opens_psycopg2() -> Any:
        opened.append(psycopg2.connect(scratch.dsn))
        return opened[0]

    async def enter() -> None:
        async with open_transaction(lambda: psycopg.connect(scratch.dsn)):
            pass

    opened: list[Any] = []
    with pytest.raises(TypeError, match=r"is asynchronous or not a connection: write `async with`"):
        open_transaction(lambda: psycopg.AsyncConnection.connect(scratch.dsn)).__enter__()
    with pytest.raises(TypeError, match=r"psycopg.Connection is synchronous: write `with`, in a plain function"):
        asyncio.run(enter())
    with pytest.raises(TypeError, match="is not a connection of the accepted kinds"):
        open_transaction(opens_psycopg2).__enter__()
    opened[0].close()
