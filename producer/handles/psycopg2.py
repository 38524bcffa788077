"""psycopg2: a connection or a cursor. A statement runs on a cursor of its own: the application's keeps its results."""

from __future__ import annotations

from contextlib import closing
from typing import Any

from outrider.producer.handles import Adapter, Guard, Rows, StatementsOnly
from outrider.producer.statement import Parameters, Statement

IDLE = 0  # psycopg2.extensions.TRANSACTION_STATUS_IDLE


def connection_of(handle: Any) -> Any:
    return getattr(handle, "connection", handle)


def in_transaction(connection: Any) -> bool:
    return not connection.autocommit or connection.get_transaction_status() != IDLE


class Psycopg2(StatementsOnly):
    is_async = False

    def in_transaction(self, handle: Any) -> bool:
        return in_transaction(connection_of(handle))

    def execute(self, handle: Any, statement: Statement, parameters: Parameters, guard: Guard) -> int:
        connection = connection_of(handle)
        guard(in_transaction(connection))
        with closing(connection.cursor()) as cursor:
            cursor.execute(statement.pyformat, parameters)
            return int(cursor.rowcount)

    def fetch(self, handle: Any, statement: Statement, parameters: Parameters, guard: Guard) -> Rows:
        connection = connection_of(handle)
        guard(in_transaction(connection))
        with closing(connection.cursor()) as cursor:
            cursor.execute(statement.pyformat, parameters)
            return [tuple(row) for row in cursor.fetchall()]


ADAPTER: Adapter = Psycopg2()
