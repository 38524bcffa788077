"""
Django: a database alias ('default'), `django.db.connection` or one of `django.db.connections`.

The statement goes through Django's own cursor, so that its query log, its instrumentation and its transaction
management see it. A statement that is not waited for goes through Django's part of a cursor as well, but not through
the driver's: where Django logs its queries, or somebody has put their own cursor in the place of Django's, all
statements are waited for.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from outrider.producer.handles import Adapter, Guard, Rows, Send, StatementsOnly
from outrider.producer.statement import Parameters, Statement

_SendOn = Callable[[Any, Statement, Parameters], bool]
"""in_flight.send: imported only where there is psycopg 3."""


def connection_of(handle: Any) -> Any:
    """The connection of an alias; a connection itself. It must be PostgreSQL."""
    from django.db import connections

    connection = connections[handle] if isinstance(handle, str) else handle
    if connection.vendor != "postgresql":
        raise TypeError(f"the outbox lives in PostgreSQL, and {connection.alias!r} is {connection.vendor}")
    return connection


def in_transaction(connection: Any) -> bool:
    return bool(connection.in_atomic_block or not connection.get_autocommit())


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

    def sender(self, handle: Any) -> Send | None:
        connection = connection_of(handle)
        if not _has_cursors_of_its_own(connection):
            return None
        from outrider.producer.handles import in_flight

        return partial(_send, connection, in_flight.send) if in_flight.can_send(connection.connection) else None


def _has_cursors_of_its_own(connection: Any) -> bool:
    """Whether it has psycopg 3, and nobody is told of its statements but by Django's part of a cursor."""
    driver = connection.connection
    return (
        driver is not None
        and connection.Database.__name__ == "psycopg"
        and driver.cursor_factory.__module__ == "django.db.backends.postgresql.base"
        and not connection.queries_logged
        and "cursor" not in vars(connection)
    )


def _send(connection: Any, send: _SendOn, statement: Statement, parameters: Parameters) -> None:
    cursor = _SendingCursor(connection.connection, send, statement)
    connection.make_cursor(cursor).execute(statement.pyformat, parameters)


class _SendingCursor:
    """The driver's part of a cursor, for Django's to call."""

    rowcount = -1
    description = None

    def __init__(self, driver: Any, send: _SendOn, statement: Statement) -> None:
        self._driver = driver
        self._send = send
        self._statement = statement

    def execute(self, sql: str, parameters: Parameters) -> None:
        # An execute_wrapper may have changed the text (added a comment, say), or the state of the connection.
        own = self._statement
        if not self._send(self._driver, own if sql == own.pyformat else Statement(sql), parameters):
            with self._driver.cursor() as cursor:
                cursor.execute(sql, parameters)

    def close(self) -> None:
        """There is nothing to close."""


ADAPTER: Adapter = Django()
