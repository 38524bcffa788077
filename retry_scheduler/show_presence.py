"""ShowPresence: refreshes the presence row of this scheduler in outbox_worker."""

from __future__ import annotations

from outrider.retry_scheduler.maintenance import MaintenanceTask
from outrider.storage.service_queries import PRESENCE_INTERVAL_SECONDS
from outrider.storage.store import Store


class ShowPresence(MaintenanceTask):
    name = "show_presence"
    interval_seconds = PRESENCE_INTERVAL_SECONDS

    def __init__(self, worker_name: str) -> None:
        self._worker_name = worker_name

    def run_once(self, store: Store) -> dict[str, int]:
        store.worker_seen("scheduler", self._worker_name, "active")
        return {}

    def leave(self, store: Store) -> None:
        """Delete the row."""
        store.worker_gone("scheduler", self._worker_name)
