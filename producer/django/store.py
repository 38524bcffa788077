"""
DjangoStore: the named queries over Django's connection to an alias, whichever driver it uses.

So that operators' work (outbox.dead_letters, outbox.pending) runs in Django as it does in the `outbox` command, inside
Django's transaction where there is one. Parameters are bound as text by the driver; jsonb comes back as text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from django.db import Error, connections
from django.utils.connection import ConnectionDoesNotExist

from outrider.errors import DatabaseError, SettingsError
from outrider.producer.django.conf import get_settings
from outrider.storage.sql_files import queries_of
from outrider.storage.store import Store

T = TypeVar("T")


class DjangoStore(Store):
    """The outbox of a database alias; None is OUTRIDER["DATABASE"]."""

    def __init__(self, using: str | None = None) -> None:
        settings = get_settings()
        self.using = using or settings.database
        self.queries = queries_of(settings.schema)

    def _run(
        self,
        name: str,
        parameters: Mapping[str, Any],
        read: Callable[[Any], T],
        *,
        binary: bool = False,  # noqa: ARG002  Django's drivers choose the format
    ) -> T:
        with django_errors(), connections[self.using].cursor() as cursor:
            cursor.execute(self.queries[name], parameters)
            return read(cursor)

    def state(self, name: str, **parameters: object) -> list[dict[str, Any]]:
        """The rows of a query of sql/queries/state.sql, by column."""
        return self._run(name, parameters, _as_dicts)


def _as_dicts(cursor: Any) -> list[dict[str, Any]]:
    names = [column[0] for column in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


@contextmanager
def django_errors() -> Iterator[None]:
    """Turn what Django raises into a DatabaseError of one line."""
    try:
        yield
    except Error as error:
        cause = error.__cause__
        sqlstate = getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None)
        raise DatabaseError(f"PostgreSQL: {first_line(error)}", sqlstate=sqlstate) from error
    except ConnectionDoesNotExist:
        raise SettingsError("there is no database of this alias in DATABASES") from None


def first_line(error: Exception) -> str:
    """The text of an error in one line; its class where it has none."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
