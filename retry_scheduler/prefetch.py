"""
Prefetch: claim the next batch while the one before is on its way, on a thread and a connection of its own.

One claim at a time: `begin` it, wait for `fileno`, `take` what came of it. What goes wrong with the database is raised
by `take`, and the next claim opens a new connection.
"""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as StillRunning
from contextlib import suppress

from outrider.errors import DatabaseError
from outrider.retry_scheduler.claim import Batch, Claimer
from outrider.retry_scheduler.database import Database
from outrider.runtime.wakeable_queue import WakeableQueue
from outrider.telemetry.metrics import Metrics


class Prefetch:
    def __init__(self, database: Database, claimer: Claimer, metrics: Metrics) -> None:
        self._database = database
        self._claimer = claimer
        self._metrics = metrics
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="claim")
        self._claim: Future[Batch] | None = None
        self._news: WakeableQueue[None] = WakeableQueue()

    @property
    def in_progress(self) -> bool:
        """From `begin` until something was taken."""
        return self._claim is not None

    def begin(self, *, at_most: int | None) -> None:
        assert self._claim is None, "one claim at a time"
        self._claim = self._pool.submit(self._run, at_most)
        # Not from within the claim: whoever is woken by it must find it done.
        self._claim.add_done_callback(lambda _: self._news.put([None]))

    def take(self) -> Batch | None:
        """What was claimed, as soon as it is there."""
        self._news.take()
        if self._claim is None or not self._claim.done():
            return None
        claim, self._claim = self._claim, None
        return claim.result()

    def fileno(self) -> int:
        """For select(): readable when there is something to take."""
        return self._news.fileno()

    def close(self, timeout_seconds: float) -> Batch | None:
        """Wait for the claim that is in progress, but not for long; what it brought is nobody's yet."""
        batch: Batch | None = None
        if self._claim is not None:
            with suppress(DatabaseError, StillRunning):
                batch = self._claim.result(timeout_seconds)
        self._pool.shutdown(wait=False)
        self._database.close()
        self._news.close()
        return batch

    def _run(self, at_most: int | None) -> Batch:
        began = time.monotonic()
        try:
            return self._claimer.claim(self._database.open(), at_most=at_most)
        except DatabaseError:
            self._database.close()
            raise
        finally:
            self._metrics.claim_seconds.observe(time.monotonic() - began)
