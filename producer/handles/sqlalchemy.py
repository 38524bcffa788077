"""
SQLAlchemy: Session and Connection, synchronous and asynchronous, on psycopg, psycopg2 or asyncpg.

The statement goes to the driver unchanged (`exec_driver_sql`), in the session's own transaction; the session is not
flushed. SQLAlchemy begins a transaction by itself, so a handle is outside of one only with the AUTOCOMMIT isolation
level. For a session with several binds, pass `session.connection(bind_arguments={...})` instead of the session.
"""

from __future__ import annotations

from typing import Any

from outrider.producer.handles import Adapter, Guard, Rows, StatementsOnly, no_guard
from outrider.producer.statement import Parameters, Statement


def connection_of(handle: Any) -> Any:
    """The PostgreSQL connection of a session; a connection itself."""
    # `Session.connection` is a method that returns a Connection; `Connection.connection` is the pool's connection.
    connection = handle.connection() if callable(handle.connection) else handle
    if connection.dialect.name != "postgresql":
        raise TypeError(f"the outbox is in PostgreSQL, and this handle is for {connection.dialect.name}")
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
    Runs the synchronous adapter in a greenlet (`run_sync`).

    The guard is called outside of it: its warning must point at the application's line, which is not on the greenlet's
    stack.
    """

    is_async = True

    def in_transaction(self, handle: Any) -> bool:
        raise NotImplementedError("known only inside run_sync")

    async def execute(self, handle: Any, statement: Statement, parameters: Parameters, guard: Guard) -> int:
        guard(await handle.run_sync(in_transaction))
        return int(await handle.run_sync(SYNC.execute, statement, parameters, no_guard))

    async def fetch(self, handle: Any, statement: Statement, parameters: Parameters, guard: Guard) -> Rows:
        guard(await handle.run_sync(in_transaction))
        rows: Rows = await handle.run_sync(SYNC.fetch, statement, parameters, no_guard)
        return rows


SYNC: Adapter = SQLAlchemy()
ASYNC: Adapter = AsyncSQLAlchemy()
