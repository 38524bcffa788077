"""Heartbeat: every few seconds, refreshes the relay's presence row and the gauges of its slot."""

from __future__ import annotations

import contextlib
import time
from typing import Literal

from outrider.cdc_relay.reporting import RelayReporter
from outrider.errors import DatabaseError
from outrider.operations.setup import slot_state
from outrider.settings.relay import RelaySettings
from outrider.storage.presence import INTERVAL_SECONDS, Presence
from outrider.storage.store import Store


class Heartbeat:
    """Runs its queries on the caller's thread. One per connection."""

    def __init__(self, store: Store, settings: RelaySettings, reporter: RelayReporter) -> None:
        self._store = store
        self._slot = settings.slot
        self._reporter = reporter
        self._presence = Presence("relay", settings.name)
        self._role: Literal["active", "standby"] | None = None
        self._due = 0.0

    def beat(self, role: Literal["active", "standby"]) -> None:
        """Run both queries if they are due, or if the role has changed. Raises DatabaseError."""
        if role != self._role or time.monotonic() >= self._due:
            self._role, self._due = role, time.monotonic() + INTERVAL_SECONDS
            self._presence.show(self._store, role)
            self._reporter.set_slot_gauges(slot_state(self._store, self._slot))

    def stop(self) -> None:
        """Delete the presence row."""
        with contextlib.suppress(DatabaseError):
            self._presence.leave(self._store)
