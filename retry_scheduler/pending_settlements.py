"""
PendingSettlements: settlements that are not written to the table yet.

Nearly always empty. When the database connection is lost between a send and its settlement, settlements wait here for
the next connection, so that a delivered message is not delivered again. They are dropped when their lease has ended:
then another scheduler may have claimed the rows.
"""

from __future__ import annotations

import time
from collections import deque

from outrider.errors import DatabaseError
from outrider.retry_scheduler.claim import Batch
from outrider.retry_scheduler.settlement import BatchSettlement
from outrider.runtime.crash_points import crash_point
from outrider.storage.store import Store
from outrider.telemetry.logs import get_logger
from outrider.telemetry.metrics import Metrics

log = get_logger(__name__)


class PendingSettlements:
    def __init__(self, metrics: Metrics, *, archive: bool, cooldown_seconds: float) -> None:
        self._metrics = metrics
        self._archive = archive
        self._cooldown_seconds = cooldown_seconds
        self._pending: deque[tuple[Batch, BatchSettlement]] = deque()
        self._before_settle = crash_point("scheduler.before_settle")
        self._after_settle = crash_point("scheduler.after_settle")

    def __len__(self) -> int:
        return len(self._pending)

    def add(self, batch: Batch, settlement: BatchSettlement) -> None:
        self._pending.append((batch, settlement))

    def write(self, store: Store) -> None:
        """Write all settlements. After a DatabaseError the rest is kept, unless its lease has ended."""
        while self._pending:
            batch, settlement = self._pending[0]
            began = time.monotonic()
            self._before_settle()
            try:
                lost = settlement.write(store, archive=self._archive, cooldown_seconds=self._cooldown_seconds)
            except DatabaseError:
                if began < batch.lease_ends_at:
                    raise
                log.warning("settlement_dropped", claim=batch.claim, hint="its rows are due again: the lease has ended")
            else:
                self._after_settle()
                self._metrics.settle_seconds.observe(time.monotonic() - began)
                if lost:
                    log.warning("lease_ended", claim=batch.claim, rows=lost)
            self._pending.popleft()
