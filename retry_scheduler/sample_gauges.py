"""
Sample: the gauges of the outbox, at a bounded cost.

Counts are exact up to MOST rows; beyond that `pending` and `dead` are the planner's estimate, and `retrying` counts
among the MOST rows that fall due first. Nothing here ever counts a whole table.
"""

from __future__ import annotations

from outrider.storage.store import Sample, Store
from outrider.telemetry.metrics import Metrics

MOST = 10_000


class SampleGauges:
    name = "sample"
    interval_seconds = 10.0
    unfinished = False

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self.latest: Sample | None = None

    def run_once(self, store: Store) -> dict[str, int]:
        """Returns nothing worth a log line."""
        self.latest = sample = store.sample(most=MOST)
        self._metrics.pending.set(sample.pending)
        self._metrics.retrying.set(sample.retrying)
        self._metrics.dead.set(sample.dead)
        self._metrics.oldest_pending_seconds.set(sample.oldest_seconds)
        return {}
