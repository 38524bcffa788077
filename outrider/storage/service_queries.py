"""
ServiceQueries: sql/queries/services.sql, which the relay and the scheduler share: settling rows, and their presence.

`claim` None: the relay acts, on rows that it owns. Otherwise the scheduler that holds this claim.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal, NamedTuple

from outrider.storage.connection import database_errors
from outrider.storage.decision import Burial, Retry
from outrider.storage.query_runner import QueryRunner
from outrider.version import __version__

WorkerKind = Literal["relay", "scheduler", "worker"]
WorkerRole = Literal["active", "standby"]

PRESENCE_INTERVAL_SECONDS = 5.0
"""How often a service refreshes its presence row."""

STALE_SECONDS = 4 * PRESENCE_INTERVAL_SECONDS
"""A service not seen for longer than this was killed, or cannot reach the database."""

RUN_LENGTH = 100
"""How many parked rows of a key fall due together when its head has left."""


BURIAL_TRIES = 10
"""How often a row is buried under another id, because another session took the id at the same moment."""
BOOKKEEPING_LOCK_SECONDS = 1.0
BOOKKEEPING_STATEMENT_SECONDS = 10.0


class LongStatement(NamedTuple):
    """A statement that is running, and what it waits for."""

    seconds: float
    wait_type: str | None
    wait_event: str | None


class ServiceQueries(QueryRunner):
    def settle(
        self, ids: Sequence[int], *, claim: str | None = None, archive: bool = False, followed: bool = True
    ) -> list[int]:
        """
        Delete or archive delivered rows; returns the ids that were there.

        `followed` False skips the look-up of parked rows behind them: the caller knows that there are none.
        """
        query = "settle_to_archive" if archive else "settle" if followed else "settle_unfollowed"
        return self._found(query, ids, claim=claim, run_length=RUN_LENGTH)

    def fail(self, retries: Sequence[Retry], *, claim: str | None = None) -> list[int]:
        """Spend an attempt and back off; returns the ids that were still the caller's."""
        ids, errors, backoffs = map(list, zip(*retries, strict=True))
        return self._column("fail", ids=ids, errors=errors, backoff_seconds=backoffs, claim=claim)

    def bury(self, burials: Sequence[Burial], *, claim: str | None = None) -> list[int]:
        """Move rows to the dead letters; returns the ids that were moved."""
        moved: list[int] = []
        left = list(burials)
        for _ in range(BURIAL_TRIES):
            ids, reasons, errors, spent = map(list, zip(*left, strict=True))
            parameters = {"ids": ids, "reasons": reasons, "errors": errors, "spent": spent}
            found: dict[int, bool] = dict(self._execute("bury", **parameters, claim=claim, run_length=RUN_LENGTH))
            moved += [row_id for row_id, was_moved in found.items() if was_moved]
            left = [burial for burial in left if found.get(burial.id) is False]
            if not left:
                break
        return moved

    @contextmanager
    def beside_messages(self) -> Iterator[None]:
        """
        A transaction for presence, gauges and clean-up, which no message may wait for: it gives up soon if it has to
        wait for a lock or takes long, and its commit waits for no disk and no standby. Raises DatabaseError.
        """
        with database_errors(), self.connection.transaction():
            self._execute(
                "bookkeeping_limits",
                lock_milliseconds=round(BOOKKEEPING_LOCK_SECONDS * 1000),
                statement_milliseconds=round(BOOKKEEPING_STATEMENT_SECONDS * 1000),
            )
            yield

    def longest_statement(self, *, longer_than_seconds: float) -> LongStatement | None:
        """The statement that other connections of this service have run for longest; None if none takes so long."""
        row = self._first("longest_statement", longer_than_seconds=longer_than_seconds)
        return None if row is None else LongStatement._make(row)

    def worker_seen(self, kind: WorkerKind, name: str, role: WorkerRole) -> None:
        """Write or refresh the presence row of this process in outbox_worker."""
        process = {"version": __version__, "host": socket.gethostname(), "pid": os.getpid()}
        self._execute("worker_seen", kind=kind, name=name, role=role, **process)

    def worker_gone(self, kind: WorkerKind, name: str) -> None:
        """Delete the presence row of a service that stops. A row that stays and ages is of one that was killed."""
        self._execute("worker_gone", kind=kind, name=name)
