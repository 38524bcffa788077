"""
Savepoints: a block in a handle's transaction that is rolled back as a whole if it raises; the transaction continues.

Uses the library's own nested transaction where there is one, because it does more than SQL: an ORM session flushes
before the savepoint is released and expires what was rolled back, Django drops on_commit hooks, psycopg refuses a
commit inside. Nothing here ends the transaction itself.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import cache
from typing import Any

from outrider.producer.handles import Adapter, no_guard
from outrider.producer.statement import Statement
from outrider.storage.sql_files import script


def savepoint(adapter: Adapter, handle: Any) -> Any:
    """A context manager: a savepoint for a synchronous handle that is in a transaction."""
    match _library(adapter):
        case "psycopg3":
            return _psycopg(adapter, handle)
        case "psycopg2":
            return _psycopg2(adapter, handle)
        case "sqlalchemy":
            return handle.begin_nested()
        case _:
            return _django(handle)


def async_savepoint(adapter: Adapter, handle: Any) -> Any:
    """A context manager: a savepoint for an asynchronous handle that is in a transaction."""
    match _library(adapter):
        case "psycopg3":
            return _psycopg_async(adapter, handle)
        case "sqlalchemy":
            return handle.begin_nested()
        case _:
            return handle.transaction()  # asyncpg


async def async_in_transaction(adapter: Adapter, handle: Any) -> bool:
    """Adapter.in_transaction for asynchronous handles; SQLAlchemy's can be asked only in a greenlet."""
    if _library(adapter) == "sqlalchemy":
        from outrider.producer.handles.sqlalchemy import in_transaction

        return bool(await handle.run_sync(in_transaction))
    return adapter.in_transaction(handle)


def _library(adapter: Adapter) -> str:
    """Each adapter has a module of its own, named after its library."""
    return type(adapter).__module__.rpartition(".")[2]


@cache
def _statement(name: str) -> Statement:
    return Statement(script(f"inbox/{name}.sql"))


# -- psycopg ----------------------------------------------------------------------------------------------------------


@contextmanager
def _psycopg(adapter: Adapter, handle: Any) -> Iterator[None]:
    from outrider.producer.handles.psycopg3 import connection_of

    connection = connection_of(handle)
    if _is_idle(connection):
        adapter.execute(connection, _statement("begin"), {}, no_guard)
    block = connection.transaction()
    block.__enter__()
    try:
        yield
    except BaseException:
        # Its return value is ignored: a psycopg.Rollback applies to the caller's transaction, not to this savepoint.
        block.__exit__(*sys.exc_info())
        raise
    block.__exit__(None, None, None)


@asynccontextmanager
async def _psycopg_async(adapter: Adapter, handle: Any) -> AsyncIterator[None]:
    from outrider.producer.handles.psycopg3 import connection_of

    connection = connection_of(handle)
    if _is_idle(connection):
        await adapter.execute(connection, _statement("begin"), {}, no_guard)
    block = connection.transaction()
    await block.__aenter__()
    try:
        yield
    except BaseException:
        await block.__aexit__(*sys.exc_info())
        raise
    await block.__aexit__(None, None, None)


def _is_idle(connection: Any) -> bool:
    """
    Whether psycopg will begin a transaction before the next statement. If a transaction() block began it, the end of
    the block would commit it: too early for the caller.
    """
    from psycopg.pq import TransactionStatus

    return bool(connection.info.transaction_status == TransactionStatus.IDLE and not connection.autocommit)


# -- other libraries --------------------------------------------------------------------------------------------------


@contextmanager
def _psycopg2(adapter: Adapter, handle: Any) -> Iterator[None]:
    adapter.execute(handle, _statement("savepoint"), {}, no_guard)
    try:
        yield
    except BaseException:
        adapter.execute(handle, _statement("roll_back"), {}, no_guard)
        raise
    adapter.execute(handle, _statement("release"), {}, no_guard)


def _django(handle: Any) -> Any:
    from django.db.transaction import atomic

    from outrider.producer.handles.django import connection_of

    return atomic(using=connection_of(handle).alias)
