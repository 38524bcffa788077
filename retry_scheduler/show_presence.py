"""ShowPresence: refreshes the presence row of this scheduler (see outrider/storage/presence.py)."""

from __future__ import annotations

from outrider.retry_scheduler.maintenance import MaintenanceTask
from outrider.storage.presence import INTERVAL_SECONDS, Presence
from outrider.storage.store import Store


class ShowPresence(MaintenanceTask):
    name = "show_presence"
    interval_seconds = INTERVAL_SECONDS

    def __init__(self, worker_name: str) -> None:
        self._presence = Presence("scheduler", worker_name)

    def run_once(self, store: Store) -> dict[str, int]:
        self._presence.show(store, "active")
        return {}

    def leave(self, store: Store) -> None:
        """Delete the row."""
        self._presence.leave(store)
