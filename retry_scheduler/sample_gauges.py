"""
SampleGauges: sets the gauges of the outbox, at a bounded cost, to the numbers that `outrider status` shows.
"""

from __future__ import annotations

from outrider.operations.outbox_state import COUNT_LIMIT
from outrider.runtime.maintenance import MaintenanceTask
from outrider.storage.scheduler_queries import Sample
from outrider.storage.store import Store
from outrider.telemetry.metrics import Metrics


class SampleGauges(MaintenanceTask):
    name = "sample_gauges"
    interval_seconds = 10.0

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self.latest: Sample | None = None

    def run_once(self, store: Store) -> dict[str, int]:
        self.latest = sample = store.sample(most=COUNT_LIMIT)
        self._metrics.pending.set(sample.pending)
        self._metrics.retrying.set(sample.retrying)
        self._metrics.dead.set(sample.dead)
        self._metrics.unsupported.set(sample.unsupported)
        self._metrics.oldest_pending_seconds.set(sample.oldest_seconds)
        self._metrics.overdue_seconds.set(sample.overdue_seconds)
        return {}
