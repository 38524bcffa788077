"""
Housekeeping: run each chore when its time has come, between two batches.

A chore does one small piece of work per call, so that delivery never waits long; while it has more it comes again soon.
A chore that takes long comes less often. One that fails is logged and tried again at its next turn, unless the
connection is gone: that is the scheduler's business.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from outrider.errors import DatabaseError
from outrider.storage.store import Store
from outrider.telemetry.logs import get_logger

UNFINISHED_SECONDS = 0.1
LARGEST_SHARE = 0.05
"""How much of the time a chore may take."""

log = get_logger(__name__)


class Chore(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def interval_seconds(self) -> float: ...

    @property
    def unfinished(self) -> bool:
        """The last call left work behind."""

    def run_once(self, store: Store) -> dict[str, int]:
        """Do one piece of work; returns counts for the log."""


class Housekeeping:
    def __init__(self, chores: Sequence[Chore], clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._due = [(clock(), chore) for chore in chores]

    def run_due(self, store: Store) -> None:
        """Run the chores whose time has come."""
        self._due = [(due if self._clock() < due else self._run(chore, store), chore) for due, chore in self._due]

    def seconds_until_due(self) -> float:
        return max(0.0, min(due for due, _ in self._due) - self._clock())

    def hasten(self, chore: Chore, within_seconds: float) -> None:
        """Let a chore come sooner than its interval says."""
        latest = self._clock() + within_seconds
        self._due = [(min(due, latest) if each is chore else due, each) for due, each in self._due]

    def run_all(self, store: Store) -> None:
        """Run every chore until it has nothing left to do."""
        for _, chore in self._due:
            self._run(chore, store)
            while chore.unfinished:
                self._run(chore, store)

    def _run(self, chore: Chore, store: Store) -> float:
        """When it is due again."""
        began = self._clock()
        try:
            counts = chore.run_once(store)
        except DatabaseError as error:
            if store.connection.closed:
                raise
            log.warning("housekeeping_failed", chore=chore.name, reason=str(error), sqlstate=error.sqlstate)
            return self._clock() + chore.interval_seconds
        if any(counts.values()):
            log.info(chore.name, **counts)
        ended = self._clock()
        pause = UNFINISHED_SECONDS if chore.unfinished else chore.interval_seconds
        return ended + max(pause, (ended - began) / LARGEST_SHARE)
