"""
Write outcomes to the table so that a row that cannot be written never holds up the others.

All rows go out in one statement. If PostgreSQL or its driver refuses the statement because of what it holds, the rows
are divided, down to the one that is the cause. For that row the first of these that can be written is:

    delivered               deleted without its copy in the archive, which is logged
    retried, buried         the same with FIXED_TEXT as its error
    all three               set aside: it is the scheduler's, and due again after SET_ASIDE_SECONDS
    none of it              left as it is, which is logged. A lease or the hand-over time makes it due again

An error that is not about the rows (a lost connection, a timeout, a privilege, a full disk) is raised: then nothing of
the statement was written, and the caller repeats it later.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from outrider.errors import DatabaseError
from outrider.failures import one_line, text_of
from outrider.storage.decision import Burial, Decision, Retry
from outrider.storage.store import Store
from outrider.telemetry.logs import get_logger

FIXED_TEXT = "its error could not be stored: see the log of the service"
SET_ASIDE_SECONDS = 3600.0

# Classes of SQLSTATE that do not depend on a row: connection, transaction state, rollback, privileges and names,
# resources, prerequisites (such as a lock that is held), intervention (such as a timeout), system, no such database.
_NOT_ABOUT_ROWS = ("08", "25", "28", "3D", "3F", "40", "42", "53", "55", "57", "58")

T = TypeVar("T")

log = get_logger(__name__)


class Settling:
    """Writes for the relay (`claim` None), or for one claim of a scheduler. Each method returns the ids it found."""

    def __init__(self, store: Store, claim: str | None = None) -> None:
        self._store = store
        self._claim = claim

    def settle(self, ids: Sequence[int], *, archive: bool, followed: bool = True) -> list[int]:
        """Delete or archive delivered rows."""

        def write(some: Sequence[int]) -> list[int]:
            return self._store.settle(some, claim=self._claim, archive=archive, followed=followed)

        def delete(row_id: int) -> list[int]:
            return self._store.settle([row_id], claim=self._claim, archive=False, followed=followed)

        return self.write(write, ids, int, [delete, self._set_aside] if archive else [self._set_aside])

    def fail(self, retries: Sequence[Retry]) -> list[int]:
        """Spend an attempt and back off."""

        def write(some: Sequence[Retry]) -> list[int]:
            return self._store.fail(some, claim=self._claim)

        return self.write(write, retries, _id_of, [lambda one: write([one._replace(error=FIXED_TEXT)])])

    def bury(self, burials: Sequence[Burial]) -> list[int]:
        """Move rows to the dead letters."""

        def write(some: Sequence[Burial]) -> list[int]:
            return self._store.bury(some, claim=self._claim)

        last_resorts = [lambda one: write([one._replace(error=FIXED_TEXT)]), lambda one: self._set_aside(one.id)]
        return self.write(write, burials, _id_of, last_resorts)

    def write(
        self,
        write: Callable[[Sequence[T]], list[int]],
        items: Sequence[T],
        id_of: Callable[[T], int],
        last_resorts: Sequence[Callable[[T], list[int]]] = (),
    ) -> list[int]:
        """
        `write` these items; `last_resorts` are tried in turn for an item that cannot be written.

        Returns what they return, and the ids of items that could not be written at all: nothing is left to do for them.
        """
        if not items:
            return []
        try:
            return write(items)
        except Exception as error:
            if not self._is_about_rows(error):
                raise
            if len(items) == 1:
                return self._write_last_resort(items[0], id_of(items[0]), last_resorts, error)
        middle = len(items) // 2
        return self.write(write, items[:middle], id_of, last_resorts) + self.write(
            write, items[middle:], id_of, last_resorts
        )

    def _write_last_resort(
        self, item: T, row_id: int, last_resorts: Sequence[Callable[[T], list[int]]], error: Exception
    ) -> list[int]:
        log.error(
            "row_not_settled", id=row_id, reason=one_line(text_of(error)), hint="see the constraints and triggers"
        )
        for last_resort in last_resorts:
            try:
                return last_resort(item)
            except Exception as again:
                if not self._is_about_rows(again):
                    raise
        log.error("row_left", id=row_id, hint="it is due again when its lease or its hand-over time ends")
        return [row_id]

    def _set_aside(self, row_id: int) -> list[int]:
        return self._store.fail([Retry(row_id, FIXED_TEXT, SET_ASIDE_SECONDS)], claim=self._claim)

    def _is_about_rows(self, error: Exception) -> bool:
        """Not only errors of psycopg: a text that UTF-8 cannot encode raises UnicodeEncodeError."""
        if not isinstance(error, DatabaseError):
            return True
        return not (self._store.connection.closed or (error.sqlstate or "").startswith(_NOT_ABOUT_ROWS))


def _id_of(decision: Decision) -> int:
    return decision.id
