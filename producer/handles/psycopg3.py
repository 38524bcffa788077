"""
psycopg 3: connections and cursors, synchronous and asynchronous.

A statement runs on a cursor of its own, so that the results, the row factory and the placeholder style of the
application's cursor or connection stay as they are. In pipeline mode, whether a message with a dedup_key was new is not
known before the pipeline is synchronised.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import psycopg
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.rows import tuple_row

from outrider.producer.handles import Adapter, Copy, Guard, Rows
from outrider.producer.statement import Parameters, Statement


def connection_of(handle: Any) -> Any:
    """The connection of a cursor; a connection itself."""
    return handle if isinstance(handle, psycopg.Connection | psycopg.AsyncConnection) else handle.connection


def in_transaction(connection: Any) -> bool:
    """
    Without autocommit, psycopg begins a transaction before the first statement. The statements of a pipeline up to its
    next sync are one transaction, even where there is no BEGIN.
    """
    return (
        not connection.autocommit
        or connection.info.transaction_status != TransactionStatus.IDLE
        or connection.pgconn.pipeline_status != PipelineStatus.OFF
    )


def can_copy(connection: Any) -> bool:
    """A pipeline has no COPY."""
    return bool(connection.pgconn.pipeline_status == PipelineStatus.OFF)


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

    def copier(self, handle: Any) -> Copy | None:
        connection = connection_of(handle)
        return partial(self._copy, connection) if can_copy(connection) else None

    def _copy(self, connection: Any, statement: Statement, rows: Iterable[Sequence[Any]], guard: Guard) -> int:
        guard(in_transaction(connection))
        cursor = psycopg.Cursor(connection)
        with cursor.copy(statement.plain) as copy:
            write_row = copy.write_row
            for row in rows:
                write_row(row)
        return cursor.rowcount


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

    def copier(self, handle: Any) -> Copy | None:
        connection = connection_of(handle)
        return partial(self._copy, connection) if can_copy(connection) else None

    async def _copy(self, connection: Any, statement: Statement, rows: Iterable[Sequence[Any]], guard: Guard) -> int:
        guard(in_transaction(connection))
        cursor = psycopg.AsyncCursor(connection)
        async with cursor.copy(statement.plain) as copy:
            for row in rows:
                await copy.write_row(row)
        return cursor.rowcount


SYNC: Adapter = Psycopg()
ASYNC: Adapter = AsyncPsycopg()
