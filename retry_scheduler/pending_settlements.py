"""
The ledger: verdicts that the store has not been told yet.

Nearly always empty. When the database goes away between a send and its settlement, the verdicts wait here for the next
connection, so that a delivered message is not delivered again; but not for longer than the lease, because then the
rows are somebody else's.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from outrider.errors import DatabaseError
from outrider.retry_scheduler.claim import Batch
from outrider.retry_scheduler.settlement import Settlement
from outrider.runtime.crash_points import crash_point
from outrider.storage.store import Store
from outrider.telemetry.logs import get_logger
from outrider.telemetry.metrics import Metrics

log = get_logger(__name__)


class PendingSettlements:
    def __init__(
        self,
        metrics: Metrics,
        *,
        archive: bool,
        cooldown_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._metrics = metrics
        self._archive = archive
        self._cooldown_seconds = cooldown_seconds
        self._clock = clock
        self._untold: deque[tuple[Batch, Settlement]] = deque()
        self._before_settle = crash_point("scheduler.before_settle")
        self._after_settle = crash_point("scheduler.after_settle")

    def __len__(self) -> int:
        return len(self._untold)

    def add(self, batch: Batch, verdicts: Settlement) -> None:
        self._untold.append((batch, verdicts))

    def tell(self, store: Store) -> None:
        """Tell the store everything. A DatabaseError leaves the rest for the next time, if the lease allows for one."""
        while self._untold:
            batch, verdicts = self._untold[0]
            began = self._clock()
            self._before_settle()
            try:
                lost = verdicts.apply(store, archive=self._archive, cooldown_seconds=self._cooldown_seconds)
            except DatabaseError:
                if began < batch.lease_ends_at:
                    raise
                log.warning("left_to_the_lease", claim=batch.claim)
            else:
                self._after_settle()
                self._metrics.settle_seconds.observe(self._clock() - began)
                if lost:
                    log.warning("lease_ended", claim=batch.claim, rows=lost)
            self._untold.popleft()
