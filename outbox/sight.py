"""
Looking at an outbox without harm: bounded in time, and at peace with what a role may not see.

`glance` reads one query into values of a class whose fields are its columns. `look` turns a refusal for lack of
privilege, or a look that took too long, into `Unseen`: the rest can still be looked at. Any other error of the database
is raised. Needs a psycopg connection in autocommit; leaves no setting behind, so that it may go through a pooler.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from psycopg.rows import class_row

from outbox.errors import DatabaseError
from outbox.store import Store, database_errors

T = TypeVar("T")

LONGEST_LOOK_SECONDS = 5.0

_INSUFFICIENT_PRIVILEGE = "42501"
_QUERY_CANCELED = "57014"


class Unseen(NamedTuple):
    """Something that could not be looked at, and why."""

    reason: str


def only_column(**columns: Any) -> Any:
    """For `glance` at a query with one column: its values as they are."""
    (value,) = columns.values()
    return value


def glance(store: Store, kind: Callable[..., T], name: str, /, **parameters: object) -> list[T]:
    """The rows of a named query, each as `kind(**columns)`."""
    with database_errors(), store.connection.transaction():
        milliseconds = round(LONGEST_LOOK_SECONDS * 1000)
        store.connection.execute(store.queries["time_limit"], {"milliseconds": milliseconds})
        with store.connection.cursor(row_factory=class_row(kind)) as cursor:  # type: ignore[arg-type]
            return cursor.execute(store.queries[name], parameters).fetchall()


def look(read: Callable[[], T]) -> T | Unseen:
    """What `read` gives, or that it could not be seen."""
    try:
        return read()
    except DatabaseError as error:
        if error.sqlstate == _INSUFFICIENT_PRIVILEGE:
            return Unseen(str(error))
        if error.sqlstate == _QUERY_CANCELED:
            return Unseen(f"it took longer than {LONGEST_LOOK_SECONDS:g} s")
        raise
