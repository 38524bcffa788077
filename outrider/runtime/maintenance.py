"""
Maintenance: runs each maintenance task at its interval.

A task does one small piece of work per run; while it has more to do, it runs again soon. A task that takes long runs
less often. A run is one transaction with short limits (see `beside_messages`). A task that fails is logged, once until
it succeeds again, and runs again after its interval, unless the connection is lost: then the error is raised.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from outrider.errors import DatabaseError
from outrider.storage.store import Store
from outrider.telemetry.logs import get_logger

UNFINISHED_SECONDS = 0.1
LARGEST_SHARE = 0.05
"""The largest share of the time that a task may take."""

log = get_logger(__name__)


class MaintenanceTask(ABC):
    name: str
    """The event in the log when a run changed something."""
    interval_seconds: float
    unfinished = False
    """The last run left work to do."""

    @abstractmethod
    def run_once(self, store: Store) -> dict[str, int]:
        """Do one piece of work; returns counts for the log."""


class Maintenance:
    def __init__(self, tasks: Sequence[MaintenanceTask], clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._due = [(clock(), task) for task in tasks]
        self._failing: set[str] = set()

    def run_due(self, store: Store) -> None:
        """Run the tasks that are due."""
        self._due = [(due if self._clock() < due else self._run(task, store), task) for due, task in self._due]

    def seconds_until_due(self) -> float:
        return max(0.0, min(due for due, _ in self._due) - self._clock())

    def run_soon(self, task: MaintenanceTask, within_seconds: float) -> None:
        """Run a task earlier than its interval says."""
        latest = self._clock() + within_seconds
        self._due = [(min(due, latest) if each is task else due, each) for due, each in self._due]

    def run_all(self, store: Store) -> None:
        """Run every task until it has no work left."""
        for _, task in self._due:
            self._run(task, store)
            while task.unfinished:
                self._run(task, store)

    def _run(self, task: MaintenanceTask, store: Store) -> float:
        """Run a task; returns when it is due again."""
        began = self._clock()
        try:
            with store.beside_messages():
                counts = task.run_once(store)
        except DatabaseError as error:
            if store.connection.closed:
                raise
            if task.name not in self._failing:
                log.warning("maintenance_failed", task=task.name, reason=str(error), sqlstate=error.sqlstate)
            self._failing.add(task.name)
            return self._clock() + task.interval_seconds
        self._failing.discard(task.name)
        if any(counts.values()):
            log.info(task.name, **counts)
        ended = self._clock()
        pause = UNFINISHED_SECONDS if task.unfinished else task.interval_seconds
        return ended + max(pause, (ended - began) / LARGEST_SHARE)
