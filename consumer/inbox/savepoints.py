"""
Savepoints: a block in a handle's transaction that is undone as a whole when it raises; the transaction can go on.

The library's own nested transaction is used where it has one, because it keeps more than SQL in step: an ORM session
flushes before the savepoint's end and forgets what was undone, Django drops on_commit hooks, psycopg refuses a commit
inside. Nothing here ends the transaction itself.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from functools import cache
from typing import Any

from outrider.producer.handles import Adapter
from outrider.producer.statement import Statement
from outrider.producer.sync_or_async import unguarded
from outrider.storage.sql_files import script


def savepoint(adapter: Adapter, handle: Any) -> AbstractContextManager[Any]:
    """A savepoint of a synchronous handle that is in a transaction."""
    return _SYNC[_library(adapter)](adapter, handle)


def async_savepoint(adapter: Adapter, handle: Any) -> AbstractAsyncContextManager[Any]:
    """A savepoint of an asynchronous handle that is in a transaction."""
    return _ASYNC[_library(adapter)](adapter, handle)


async def async_in_transaction(adapter: Adapter, handle: Any) -> bool:
    """Adapter.in_transaction for asynchronous handles; those of SQLAlchemy can tell in a greenlet only."""
    if _library(adapter) == "sqlalchemy":
        from outrider.producer.handles.sqlalchemy import in_transaction

        return bool(await handle.run_sync(in_transaction))
    return adapter.in_transaction(handle)


def _library(adapter: Adapter) -> str:
    """Adapters live in a module each, named after their library."""
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
        adapter.execute(connection, _statement("begin"), {}, unguarded)
    block = connection.transaction()
    block.__enter__()
    try:
        yield
    except BaseException:
        # What it returns is left aside: a psycopg.Rollback is meant for the caller's transaction, not for this one.
        block.__exit__(*sys.exc_info())
        raise
    block.__exit__(None, None, None)


@asynccontextmanager
async def _psycopg_async(adapter: Adapter, handle: Any) -> AsyncIterator[None]:
    from outrider.producer.handles.psycopg3 import connection_of

    connection = connection_of(handle)
    if _is_idle(connection):
        await adapter.execute(connection, _statement("begin"), {}, unguarded)
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
    Whether psycopg will begin a transaction before the next statement. A transaction() block would begin it instead,
    and commit it at its own end: too early for the caller.
    """
    from psycopg.pq import TransactionStatus

    return bool(connection.info.transaction_status == TransactionStatus.IDLE and not connection.autocommit)


# -- the others -------------------------------------------------------------------------------------------------------


@contextmanager
def _psycopg2(adapter: Adapter, handle: Any) -> Iterator[None]:
    adapter.execute(handle, _statement("savepoint"), {}, unguarded)
    try:
        yield
    except BaseException:
        adapter.execute(handle, _statement("roll_back"), {}, unguarded)
        raise
    adapter.execute(handle, _statement("release"), {}, unguarded)


def _sqlalchemy(adapter: Adapter, handle: Any) -> Any:  # noqa: ARG001
    return handle.begin_nested()


def _asyncpg(adapter: Adapter, handle: Any) -> Any:  # noqa: ARG001
    return handle.transaction()


def _django(adapter: Adapter, handle: Any) -> Any:  # noqa: ARG001
    from django.db.transaction import atomic

    from outrider.producer.handles.django import connection_of

    return atomic(using=connection_of(handle).alias)


_SYNC: dict[str, Callable[[Adapter, Any], AbstractContextManager[Any]]] = {
    "psycopg3": _psycopg,
    "psycopg2": _psycopg2,
    "sqlalchemy": _sqlalchemy,
    "django": _django,
}
_ASYNC: dict[str, Callable[[Adapter, Any], AbstractAsyncContextManager[Any]]] = {
    "psycopg3": _psycopg_async,
    "sqlalchemy": _sqlalchemy,
    "asyncpg": _asyncpg,
}
