"""Heartbeat: every few seconds, refreshes the relay's presence row and the gauges of its slot."""

from __future__ import annotations

import contextlib
import time

from outrider.cdc_relay.reporting import RelayReporter
from outrider.errors import DatabaseError
from outrider.operations.setup.facts import slot_state
from outrider.settings.relay import RelaySettings
from outrider.storage.service_queries import PRESENCE_INTERVAL_SECONDS, WorkerRole
from outrider.storage.store import Store


class Heartbeat:
    """Runs its queries on the caller's thread. One per connection."""

    def __init__(self, store: Store, settings: RelaySettings, reporter: RelayReporter) -> None:
        self._store = store
        self._slot = settings.slot
        self._reporter = reporter
        self._name = settings.name
        self._role: WorkerRole | None = None
        self._due = 0.0

    def beat(self, role: WorkerRole) -> None:
        """Run both queries if they are due, or if the role has changed. Raises DatabaseError."""
        if role != self._role or time.monotonic() >= self._due:
            self._role, self._due = role, time.monotonic() + PRESENCE_INTERVAL_SECONDS
            self._store.worker_seen("relay", self._name, role)
            self._reporter.set_slot_gauges(slot_state(self._store, self._slot))

    def stop(self) -> None:
        """Delete the presence row."""
        with contextlib.suppress(DatabaseError):
            self._store.worker_gone("relay", self._name)
