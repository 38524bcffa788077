"""
WatchStatements: a service whose statement hangs says so in its readiness, with what the statement waits for.

A commit can wait without limit for a synchronous standby, and a statement for a lock. The service's own connection then
says nothing, so another one asks the server about it.
"""

from __future__ import annotations

from outrider.runtime.maintenance import MaintenanceTask
from outrider.storage.store import Store
from outrider.telemetry.health import Health

LONG_SECONDS = 4.0


class WatchStatements(MaintenanceTask):
    name = "watch_statements"
    interval_seconds = 5.0

    def __init__(self, health: Health) -> None:
        self._health = health

    def run_once(self, store: Store) -> dict[str, int]:
        longest = store.longest_statement(longer_than_seconds=LONG_SECONDS)
        self._health.set_waiting(None if longest is None else _describe(*longest))
        return {}


def _describe(seconds: float, wait_type: str | None, wait_event: str | None) -> str:
    if wait_event == "SyncRep":
        return f"a commit has waited {seconds:.0f} s for a synchronous standby: see synchronous_standby_names"
    if wait_type == "Lock":
        return f"a statement has waited {seconds:.0f} s for a lock ({wait_event}): see pg_locks"
    return f"a statement has run for {seconds:.0f} s: see pg_stat_activity"
