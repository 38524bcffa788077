"""
psycopg 3: connections and cursors, synchronous and asynchronous.

A statement runs on a cursor of its own, so that the results, the row factory and the placeholder style of a cursor or
connection that the application passes are left alone. Pipeline mode works; whether a message with a dedup_key was new
is not known before the pipeline is synchronised.
"""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from producer.handles import Adapter, Guard, Rows
from producer.statement import Parameters, Statement


def connection_of(handle: Any) -> Any:
    """The connection of a cursor; a connection itself."""
    return handle if isinstance(handle, psycopg.Connection | psycopg.AsyncConnection) else handle.connection


def in_transaction(connection: Any) -> bool:
    """Without autocommit, psycopg itself begins a transaction before the first statement."""
    return (
        not connection.autocommit
        or connection.info.transaction_status != TransactionStatus.IDLE
        # In pipeline mode the BEGIN of a transaction() block may not have been answered yet.
        or bool(getattr(connection, "_num_transactions", 0))
    )


class Psycopg:
    is_async = False

    def in_transaction(self, handle: Any) -> bool:
        return in_transaction(connection_of(handle))

    def execute(self, handle: Any, statement: Statement, parameters: Parameters, guard: Guard) -> int:
        connection = connection_of(handle)
        guard(in_transaction(connection))
        return psycopg.Cursor(connection).execute(statement.binary, parameters).rowcount

    def fetch(self, handle: Any, statement: Statement, parameters: Parameters, guard: Guard) -> Rows:
        connection = connection_of(handle)
        guard(in_transaction(connection))
        return psycopg.Cursor(connection, row_factory=tuple_row).execute(statement.binary, parameters).fetchall()


class AsyncPsycopg:
    is_async = True

    def in_transaction(self, handle: Any) -> bool:
        return in_transaction(connection_of(handle))

    async def execute(self, handle: Any, statement: Statement, parameters: Parameters, guard: Guard) -> int:
        connection = connection_of(handle)
        guard(in_transaction(connection))
        return (await psycopg.AsyncCursor(connection).execute(statement.binary, parameters)).rowcount

    async def fetch(self, handle: Any, statement: Statement, parameters: Parameters, guard: Guard) -> Rows:
        connection = connection_of(handle)
        guard(in_transaction(connection))
        cursor = psycopg.AsyncCursor(connection, row_factory=tuple_row)
        return await (await cursor.execute(statement.binary, parameters)).fetchall()


SYNC: Adapter = Psycopg()
ASYNC: Adapter = AsyncPsycopg()
