"""
QueryRunner: runs the named queries of sql/queries/ on one connection.

The connection is in autocommit: every call is a transaction of its own. A query that PostgreSQL aborts to resolve a
deadlock is run again, except inside a transaction of the caller. Errors are raised as DatabaseError. Not thread-safe.

Subclasses have one method per query. A subclass can run the queries on another kind of connection by overriding `_run`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from outrider.errors import DatabaseError
from outrider.storage.connection import database_errors
from outrider.storage.sql_files import Queries

if TYPE_CHECKING:
    import psycopg

T = TypeVar("T")

DEADLOCK = "40P01"
DEADLOCK_RETRIES = 20


class QueryRunner:
    def __init__(self, connection: psycopg.Connection[Any], schema: str) -> None:
        self.connection = connection
        self.queries = Queries(schema)

    def _execute(self, name: str, /, **parameters: object) -> list[Any]:
        return self._run(name, parameters, all_rows)

    def _value(self, name: str, /, **parameters: object) -> Any:
        return self._execute(name, **parameters)[0][0]

    def _first(self, name: str, /, **parameters: object) -> Any | None:
        return next(iter(self._execute(name, **parameters)), None)

    def _column(self, name: str, /, **parameters: object) -> list[Any]:
        """The first column of each row."""
        return [row[0] for row in self._execute(name, **parameters)]

    def _found(self, name: str, ids: Sequence[int], **parameters: object) -> list[int]:
        """Run a query that returns those of these ids that it found. The result is read only if some are missing."""
        wanted = list(ids)

        def found(cursor: Any) -> list[int]:
            return wanted if cursor.rowcount == len(wanted) else [row[0] for row in cursor.fetchall()]

        return self._run(name, {"ids": array_literal(wanted), **parameters}, found)

    def _run(self, name: str, parameters: Mapping[str, object], read: Callable[[Any], T], *, binary: bool = False) -> T:
        """Run a query and return what `read` takes from its cursor. `binary`: the format of the result."""
        for _ in range(DEADLOCK_RETRIES):
            try:
                return self._run_once(name, parameters, read, binary=binary)
            except DatabaseError as error:
                if error.sqlstate != DEADLOCK or self._in_transaction():
                    raise
        return self._run_once(name, parameters, read, binary=binary)

    def _run_once(self, name: str, parameters: Mapping[str, object], read: Callable[[Any], T], *, binary: bool) -> T:
        with database_errors():
            return read(self.connection.execute(self.queries[name], parameters, binary=binary))

    def _in_transaction(self) -> bool:
        """The deadlock also undid the caller's earlier statements, so only the caller can repeat its transaction."""
        from psycopg.pq import TransactionStatus

        return self.connection.info.transaction_status != TransactionStatus.IDLE


def array_literal(ids: Iterable[int]) -> str:
    """PostgreSQL's text form of an array of integers. Ten times faster than what drivers do with a list."""
    return f"{{{','.join(map(str, ids))}}}"


def all_rows(cursor: Any) -> list[Any]:
    return list(cursor.fetchall()) if cursor.description else []
