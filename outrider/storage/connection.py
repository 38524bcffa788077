"""
Connect to PostgreSQL, and turn the errors of psycopg into DatabaseError.

psycopg is imported when a function is called: DjangoStore uses the rest of this package with other drivers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from outrider.errors import DatabaseError
from outrider.storage.sql_files import Queries

if TYPE_CHECKING:
    import psycopg


def connect(
    dsn: str,
    *,
    application_name: str,
    connect_timeout_seconds: float = 5,
    statement_timeout_seconds: float | None = None,
) -> psycopg.Connection[Any]:
    """
    An autocommit connection that detects a dead peer within half a minute. Raises DatabaseError.

    Behind a pooler it prepares no statements: in transaction mode the next one may run on a backend without them.

    statement_timeout_seconds  closes the connection when a statement takes longer (see statement_limit.py)
    """
    import psycopg
    from psycopg.conninfo import conninfo_to_dict, make_conninfo

    from outrider.storage.statement_limit import LimitedConnection, LimitedCursor, StatementLimit

    defaults: dict[str, Any] = {
        "application_name": application_name,
        "connect_timeout": max(2, round(connect_timeout_seconds)),
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": 25_000,
    }
    given = conninfo_to_dict(dsn)
    conninfo = make_conninfo(dsn, **{name: value for name, value in defaults.items() if name not in given})
    with database_errors():
        connection = LimitedConnection.connect(conninfo, autocommit=True, cursor_factory=LimitedCursor)
        if statement_timeout_seconds is not None:
            connection.limit = StatementLimit(connection, statement_timeout_seconds)
        try:
            if is_pooled(connection):
                connection.prepare_threshold = None
        except psycopg.Error:
            connection.close()
            raise
        return connection


def is_pooled(connection: psycopg.Connection[Any]) -> bool:
    """Whether a pooler is in between: its clients get another process id at the start than that of their backend."""
    return backend_pid(connection) != connection.info.backend_pid


def backend_pid(connection: psycopg.Connection[Any]) -> int:
    """The process id of the backend that runs the connection's statements now."""
    row = connection.execute(Queries("public")["backend_pid"]).fetchone()
    assert row is not None
    return int(row[0])


@contextmanager
def database_errors() -> Iterator[None]:
    """Raise errors of psycopg as DatabaseError, with a message of one line."""
    import psycopg

    try:
        yield
    except psycopg.Error as error:
        text = error.diag.message_primary or next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise DatabaseError(f"PostgreSQL: {text}", sqlstate=error.sqlstate) from error
