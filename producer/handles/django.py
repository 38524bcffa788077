"""
Django: a database alias ('default'), `django.db.connection` or one of `django.db.connections`.

The statement goes through Django's own cursor, so that its query log, its instrumentation and its transaction
management see it. A statement that is not waited for goes through Django's part of a cursor as well, but not through
the driver's: where Django logs its queries, or somebody has put their own cursor in the place of Django's, all
statements are waited for.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from producer.handles import Adapter, Guard, Rows, Send, StatementsOnly
from producer.statement import Parameters, Statement

if TYPE_CHECKING:
    from producer.handles.in_flight import InFlight


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
        from producer.handles.in_flight import InFlight

        flight = InFlight.on(connection.connection)
        return None if flight is None else partial(_send, connection, flight)


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


def _send(connection: Any, flight: InFlight, statement: Statement, parameters: Parameters) -> None:
    connection.make_cursor(_Sending(flight, statement)).execute(statement.pyformat, parameters)


class _Sending:
    """The driver's part of a cursor, for Django's to call."""

    def __init__(self, flight: InFlight, statement: Statement) -> None:
        self._flight = flight
        self._statement = statement

    def execute(self, sql: str, parameters: Parameters) -> None:
        # An execute_wrapper may have changed the text: added a comment, say.
        own = self._statement
        self._flight.send(own if sql == own.pyformat else Statement(sql), parameters)


ADAPTER: Adapter = Django()
