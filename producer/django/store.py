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

from outrider.errors import DatabaseError
from outrider.producer.django.conf import get_settings
from outrider.storage.sql_files import Queries
from outrider.storage.store import Store

T = TypeVar("T")


class DjangoStore(Store):
    """The outbox of a database alias; None is OUTRIDER["DATABASE"]."""

    def __init__(self, using: str | None = None) -> None:
        settings = get_settings()
        self.using = using or settings.database
        self.queries = Queries(settings.schema)

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


@contextmanager
def django_errors() -> Iterator[None]:
    """Turn what Django raises into a DatabaseError of one line."""
    try:
        yield
    except Error as error:
        cause = error.__cause__
        text = next(iter(str(error).strip().splitlines()), type(error).__name__)
        sqlstate = getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None)
        raise DatabaseError(f"PostgreSQL: {text}", sqlstate=sqlstate) from error
