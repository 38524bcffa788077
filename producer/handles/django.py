"""
Django: a database alias ('default'), `django.db.connection` or one of `django.db.connections`.

The statement goes through Django's own cursor, so that its query log, its instrumentation and its transaction
management see it.
"""

from __future__ import annotations

from typing import Any

from outrider.producer.handles import Adapter, Guard, Rows, StatementsOnly
from outrider.producer.statement import Parameters, Statement


def connection_of(handle: Any) -> Any:
    """The connection of an alias; a connection itself. TypeError if it is not PostgreSQL."""
    if isinstance(handle, str):
        from django.db import connections

        handle = connections[handle]
    if handle.vendor != "postgresql":
        raise TypeError(f"the outbox is in PostgreSQL, and {handle.alias!r} is {handle.vendor}")
    return handle


def in_transaction(connection: Any) -> bool:
    """Reads attributes only: it opens no connection, and can be asked in asynchronous code."""
    if connection.in_atomic_block:
        return True
    if connection.connection is None:  # not connected: what its first statement will find
        return not connection.settings_dict["AUTOCOMMIT"]
    return not connection.autocommit


class Django(StatementsOnly):
    is_async = False

    def in_transaction(self, handle: Any) -> bool:
        return in_transaction(connection_of(handle))

    def execute(self, handle: Any, statement: Statement, parameters: Parameters, guard: Guard) -> int:
        connection = connection_of(handle)
        guard(in_transaction(connection))
        with connection.cursor() as cursor:
            cursor.execute(statement.pyformat, parameters)
            return int(cursor.rowcount)

    def fetch(self, handle: Any, statement: Statement, parameters: Parameters, guard: Guard) -> Rows:
        connection = connection_of(handle)
        guard(in_transaction(connection))
        with connection.cursor() as cursor:
            cursor.execute(statement.pyformat, parameters)
            return list(cursor.fetchall())


ADAPTER: Adapter = Django()
