"""
Read-only diagnostic queries with a time limit.

`fetch` reads the rows of a named query into values of a class whose fields are the columns. `try_fetch` returns
`Unavailable` instead of raising when the role lacks a privilege or the query took too long; other database errors are
raised. The connection must be in autocommit. No session setting is changed, so a transaction pooler does no harm.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, ParamSpec, TypeVar

from psycopg.rows import class_row

from outrider.errors import DatabaseError
from outrider.storage.connection import database_errors
from outrider.storage.store import Store

P = ParamSpec("P")
T = TypeVar("T")

TIME_LIMIT_SECONDS = 5.0

_INSUFFICIENT_PRIVILEGE = "42501"
_QUERY_CANCELED = "57014"


class Unavailable(NamedTuple):
    """A fact that could not be read, and why."""

    reason: str


def only_column(**columns: Any) -> Any:
    """The `row_class` of a query with one column: the plain value."""
    (value,) = columns.values()
    return value


def fetch(store: Store, row_class: Callable[..., T], query: str, /, **parameters: object) -> list[T]:
    """The rows of a named query, each as `row_class(**columns)`."""
    with database_errors(), store.connection.transaction():
        milliseconds = round(TIME_LIMIT_SECONDS * 1000)
        store.connection.execute(store.queries["time_limit"], {"milliseconds": milliseconds})
        with store.connection.cursor(row_factory=class_row(row_class)) as cursor:  # type: ignore[arg-type]
            return cursor.execute(store.queries[query], parameters).fetchall()


def fetch_one(store: Store, row_class: Callable[..., T], query: str, /, **parameters: object) -> T:
    """The first row of a query that always has one."""
    return fetch(store, row_class, query, **parameters)[0]


def try_fetch(read: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | Unavailable:
    """The result of `read(*args, **kwargs)`, or Unavailable."""
    try:
        return read(*args, **kwargs)
    except DatabaseError as error:
        if error.sqlstate == _INSUFFICIENT_PRIVILEGE:
            return Unavailable(str(error))
        if error.sqlstate == _QUERY_CANCELED:
            return Unavailable(f"it took longer than {TIME_LIMIT_SECONDS:g} s")
        raise
