"""
Prefetch: claims the next batch on its own thread and connection, while the batch before is being delivered.

One claim at a time: `begin` it, wait until `fileno` is readable, `take` the batch. `take` raises an error of the
database, and the next claim opens a new connection. The thread is a daemon: a claim that hangs does not keep the
process alive.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
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
        self._claim: Future[Batch] | None = None
        self._wakeup: WakeableQueue[None] = WakeableQueue()

    @property
    def in_progress(self) -> bool:
        """From `begin` until the batch was taken."""
        return self._claim is not None

    def begin(self, *, at_most: int | None) -> None:
        """Start a claim."""
        assert self._claim is None, "one claim at a time"
        self._claim = Future()
        threading.Thread(target=self._run, args=[self._claim, at_most], name="claim", daemon=True).start()

    def take(self) -> Batch | None:
        """The claimed batch; None while the claim is running."""
        self._wakeup.take()
        if self._claim is None or not self._claim.done():
            return None
        claim, self._claim = self._claim, None
        return claim.result()

    def fileno(self) -> int:
        """For select(): readable when `take` returns a batch."""
        return self._wakeup.fileno()

    def close(self, timeout_seconds: float) -> Batch | None:
        """Wait for a running claim, up to the timeout; returns its batch, of which nothing was sent."""
        batch: Batch | None = None
        if self._claim is not None:
            with suppress(DatabaseError, StillRunning):
                batch = self._claim.result(timeout_seconds)
        self._database.close()
        self._wakeup.close()
        return batch

    def _run(self, result: Future[Batch], at_most: int | None) -> None:
        try:
            result.set_result(self._claim_batch(at_most))
        except BaseException as error:
            result.set_exception(error)
        self._wakeup.put([None])

    def _claim_batch(self, at_most: int | None) -> Batch:
        began = time.monotonic()
        try:
            return self._claimer.claim(self._database.open(), at_most=at_most)
        except DatabaseError:
            self._database.close()
            raise
        finally:
            self._metrics.claim_seconds.observe(time.monotonic() - began)
