"""
Looking at an outbox without harm: bounded in time, and at peace with what a role may not see.

`fetch` reads one query into values of a class whose fields are its columns. `try_fetch` turns a refusal for lack of
privilege, or a try_fetch that took too long, into `Unavailable`: the rest can still be looked at. Any other error of the database
is raised. Needs a psycopg connection in autocommit; leaves no setting behind, so that it may go through a pooler.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from psycopg.rows import class_row

from outrider.errors import DatabaseError
from outrider.storage.store import Store, database_errors

T = TypeVar("T")

LONGEST_LOOK_SECONDS = 5.0

_INSUFFICIENT_PRIVILEGE = "42501"
_QUERY_CANCELED = "57014"


class Unavailable(NamedTuple):
    """Something that could not be looked at, and why."""

    reason: str


def only_column(**columns: Any) -> Any:
    """For `fetch` at a query with one column: its values as they are."""
    (value,) = columns.values()
    return value


def fetch(store: Store, kind: Callable[..., T], name: str, /, **parameters: object) -> list[T]:
    """The rows of a named query, each as `kind(**columns)`."""
    with database_errors(), store.connection.transaction():
        milliseconds = round(LONGEST_LOOK_SECONDS * 1000)
        store.connection.execute(store.queries["time_limit"], {"milliseconds": milliseconds})
        with store.connection.cursor(row_factory=class_row(kind)) as cursor:  # type: ignore[arg-type]
            return cursor.execute(store.queries[name], parameters).fetchall()


def try_fetch(read: Callable[[], T]) -> T | Unavailable:
    """What `read` gives, or that it could not be seen."""
    try:
        return read()
    except DatabaseError as error:
        if error.sqlstate == _INSUFFICIENT_PRIVILEGE:
            return Unavailable(str(error))
        if error.sqlstate == _QUERY_CANCELED:
            return Unavailable(f"it took longer than {LONGEST_LOOK_SECONDS:g} s")
        raise
