"""
Expire: moves messages past their `expires_at` to the dead letters, with the reason `expired`, in small batches.

Only rows that are not being sent: due, backing off, delayed or parked. A row that the relay may be sending is left
alone. A message that expires between claim and send is buried by deliver.py.
"""

from __future__ import annotations

from collections import Counter

from outrider.runtime.maintenance import MaintenanceTask
from outrider.storage.store import Store
from outrider.telemetry.metrics import Metrics

BATCH_SIZE = 1000


class Expire(MaintenanceTask):
    name = "expire"
    interval_seconds = 5.0

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def run_once(self, store: Store) -> dict[str, int]:
        """One batch."""
        types = store.expire(batch_size=BATCH_SIZE)
        self.unfinished = len(types) == BATCH_SIZE
        for event_type, count in Counter(types).items():
            self._metrics.dead_lettered("expired", event_type, count)
        return {"expired": len(types)}
