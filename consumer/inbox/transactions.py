"""
open_transaction: open a transaction from the object with which an application reaches its database.

    psycopg_pool ConnectionPool, AsyncConnectionPool    a connection of the pool
    asyncpg Pool                                        a connection of the pool
    SQLAlchemy sessionmaker, async_sessionmaker         a new session
    SQLAlchemy Engine, AsyncEngine                      a connection
    a function without arguments                        the psycopg connection that it opens, or awaits, or returns as a
                                                        context manager; closed at the end
    a Django alias                                      the alias itself, in an atomic block

The block commits at its end and rolls back on an exception. It yields a handle that the producer accepts. Pools and
engines belong to the application: they are neither opened nor closed here.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from typing import Any

from outrider.consumer.inbox.sync_or_async_context import AsyncEnter, Enter, SyncOrAsyncContext
from outrider.producer.handles import adapter_for

ACCEPTED = (
    "a psycopg_pool ConnectionPool or AsyncConnectionPool",
    "an asyncpg Pool",
    "a SQLAlchemy sessionmaker, async_sessionmaker, Engine or AsyncEngine",
    "a function that opens a psycopg connection",
    "a Django database alias such as 'default'",
)

Openers = tuple[Enter[Any] | None, AsyncEnter[Any] | None]


def open_transaction(database: Any) -> SyncOrAsyncContext[Any]:
    """A context manager that is a transaction and yields its handle. Raises TypeError that lists what is accepted."""
    enter, enter_async = _openers_for(database)
    return SyncOrAsyncContext(_describe(database), enter, enter_async)


def is_async(database: Any) -> bool | None:
    """Whether open_transaction(database) needs `async with`; None for a function, whose result is not known yet."""
    enter, enter_async = _openers_for(database)
    return None if enter is not None and enter_async is not None else enter is None


def _openers_for(database: Any) -> Openers:
    if isinstance(database, str):
        if "://" in database or "=" in database:
            # Not quoted in the error: it may contain a password.
            raise TypeError("a connection string is not accepted as a database; accepted are: " + "; ".join(ACCEPTED))
        return lambda: _django(database), None
    for ancestor in type(database).__mro__:
        find = _OPENERS.get((ancestor.__module__.partition(".")[0], ancestor.__name__))
        if find is not None:
            return find(database)
    if callable(database):
        return lambda: _connection(database), lambda: _async_connection(database)
    raise TypeError(f"{_describe(database)} is not accepted as a database; accepted are: " + "; ".join(ACCEPTED))


@contextmanager
def _connection(connect: Callable[[], Any]) -> Iterator[Any]:
    opened = connect()
    if not isinstance(opened, AbstractContextManager):
        if inspect.iscoroutine(opened):
            opened.close()
        raise TypeError(f"{_describe(opened)} is asynchronous or not a connection: write `async with`")
    with opened as connection, _transaction_of(connection, asynchronous=False):
        yield connection


@asynccontextmanager
async def _async_connection(connect: Callable[[], Any]) -> AsyncIterator[Any]:
    opened = connect()
    # Checked first: the result of asyncpg's pool.acquire() can be awaited too, but would then not be released.
    if not hasattr(opened, "__aenter__"):
        if not inspect.isawaitable(opened):
            if hasattr(opened, "close"):
                opened.close()
            raise TypeError(f"{_describe(opened)} is synchronous: write `with`, in a plain function")
        opened = await opened
    async with opened as connection, _transaction_of(connection, asynchronous=True):
        yield connection


def _transaction_of(connection: Any, *, asynchronous: bool) -> Any:
    """The connection's own transaction block. Refuses psycopg2, whose `with` block does not close the connection."""
    if adapter_for(connection).is_async is not asynchronous or not hasattr(connection, "transaction"):
        raise TypeError(f"{_describe(connection)} is not a connection of the accepted kinds: " + "; ".join(ACCEPTED))
    return connection.transaction()


@contextmanager
def _django(alias: str) -> Iterator[str]:
    from django.db import connections, transaction

    connection = connections[alias]
    # A worker's threads are long-lived, and no Django request begins or ends in them.
    connection.close_if_unusable_or_obsolete()
    try:
        with transaction.atomic(using=alias):
            yield alias
    finally:
        connection.close_if_unusable_or_obsolete()


def _describe(thing: object) -> str:
    return f"{type(thing).__module__}.{type(thing).__qualname__}"


_OPENERS: dict[tuple[str, str], Callable[[Any], Openers]] = {
    ("psycopg_pool", "ConnectionPool"): lambda pool: (lambda: _connection(pool.connection), None),
    ("psycopg_pool", "AsyncConnectionPool"): lambda pool: (None, lambda: _async_connection(pool.connection)),
    ("asyncpg", "Pool"): lambda pool: (None, lambda: _async_connection(pool.acquire)),
    ("sqlalchemy", "Engine"): lambda engine: (engine.begin, None),
    ("sqlalchemy", "sessionmaker"): lambda maker: (maker.begin, None),
    ("sqlalchemy", "AsyncEngine"): lambda engine: (None, engine.begin),
    ("sqlalchemy", "async_sessionmaker"): lambda maker: (None, maker.begin),
}
