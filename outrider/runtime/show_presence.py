"""ShowPresence: refreshes the presence row of this process in outbox_worker."""

from __future__ import annotations

from outrider.runtime.maintenance import MaintenanceTask
from outrider.storage.service_queries import PRESENCE_INTERVAL_SECONDS, WorkerKind
from outrider.storage.store import Store
from outrider.telemetry.health import Health


class ShowPresence(MaintenanceTask):
    """The role is active while the service is, else standby."""

    name = "show_presence"
    interval_seconds = PRESENCE_INTERVAL_SECONDS

    def __init__(self, kind: WorkerKind, worker_name: str, health: Health) -> None:
        self._kind: WorkerKind = kind
        self._worker_name = worker_name
        self._health = health

    def run_once(self, store: Store) -> dict[str, int]:
        role = self._health.role
        store.worker_seen(self._kind, self._worker_name, "active" if role == "active" else "standby")
        return {}

    def leave(self, store: Store) -> None:
        """Delete the row."""
        with store.beside_messages():
            store.worker_gone(self._kind, self._worker_name)
