"""
SQLAlchemy: Session and Connection, synchronous and asynchronous, on psycopg, psycopg2 or asyncpg.

The statement goes to the driver as it is (`exec_driver_sql`), in the session's own transaction; the session is not
flushed for it. SQLAlchemy begins a transaction by itself, so only an AUTOCOMMIT isolation level is outside of one. A
session with several binds must say which: pass `session.connection(bind_arguments={...})` instead of the session.
"""

from __future__ import annotations

from typing import Any

from outrider.producer.handles import Adapter, Guard, Rows, StatementsOnly
from outrider.producer.statement import Parameters, Statement


def connection_of(handle: Any) -> Any:
    """The PostgreSQL connection of a session; a connection itself."""
    # A Session has a method that gives its connection; a Connection has a property that gives the pool's.
    connection = handle.connection() if callable(handle.connection) else handle
    if connection.dialect.name != "postgresql":
        raise TypeError(f"the outbox lives in PostgreSQL, and this handle is for {connection.dialect.name}")
    return connection


def in_transaction(handle: Any) -> bool:
    return not getattr(connection_of(handle).connection.dbapi_connection, "autocommit", False)


def run(handle: Any, statement: Statement, parameters: Parameters) -> Any:
    connection = connection_of(handle)
    if connection.dialect.driver == "asyncpg":
        return connection.exec_driver_sql(statement.numeric, tuple(statement.arguments(parameters)))
    return connection.exec_driver_sql(statement.pyformat, dict(parameters))


class SQLAlchemy(StatementsOnly):
    is_async = False

    def in_transaction(self, handle: Any) -> bool:
        return in_transaction(handle)

    def execute(self, handle: Any, statement: Statement, parameters: Parameters, guard: Guard) -> int:
        guard(in_transaction(handle))
        return int(run(handle, statement, parameters).rowcount)

    def fetch(self, handle: Any, statement: Statement, parameters: Parameters, guard: Guard) -> Rows:
        guard(in_transaction(handle))
        return [tuple(row) for row in run(handle, statement, parameters)]


class AsyncSQLAlchemy(StatementsOnly):
    """
    SQLAlchemy's asynchronous handles run synchronous code in a greenlet: it needs no rewriting.

    The guard stays outside: a warning must point at the application's line, which no frame in a greenlet leads to.
    """

    is_async = True

    def in_transaction(self, handle: Any) -> bool:
        raise NotImplementedError("only a greenlet can tell")

    async def execute(self, handle: Any, statement: Statement, parameters: Parameters, guard: Guard) -> int:
        guard(await handle.run_sync(in_transaction))
        return int(await handle.run_sync(SYNC.execute, statement, parameters, _asked_already))

    async def fetch(self, handle: Any, statement: Statement, parameters: Parameters, guard: Guard) -> Rows:
        guard(await handle.run_sync(in_transaction))
        rows: Rows = await handle.run_sync(SYNC.fetch, statement, parameters, _asked_already)
        return rows


def _asked_already(in_transaction: bool) -> None:
    pass


SYNC: Adapter = SQLAlchemy()
ASYNC: Adapter = AsyncSQLAlchemy()
