"""Presence as a chore: tells every few seconds that this scheduler lives (see outrider.storage.presence.py)."""

from __future__ import annotations

from outrider.storage.presence import INTERVAL_SECONDS, Presence
from outrider.storage.store import Store


class ShowPresence:
    name = "presence"
    interval_seconds = INTERVAL_SECONDS
    unfinished = False

    def __init__(self, worker_name: str) -> None:
        self._presence = Presence("scheduler", worker_name)

    def run_once(self, store: Store) -> dict[str, int]:
        self._presence.show(store, "active")
        return {}

    def leave(self, store: Store) -> None:
        self._presence.leave(store)
