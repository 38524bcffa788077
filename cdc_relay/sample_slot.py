"""SampleSlot: sets the gauges of the relay's slot."""

from __future__ import annotations

from outrider.cdc_relay.reporting import RelayReporter
from outrider.operations.setup.facts import slot_state
from outrider.runtime.maintenance import MaintenanceTask
from outrider.storage.store import Store


class SampleSlot(MaintenanceTask):
    name = "sample_slot"
    interval_seconds = 5.0

    def __init__(self, slot: str, reporter: RelayReporter) -> None:
        self._slot = slot
        self._reporter = reporter

    def run_once(self, store: Store) -> dict[str, int]:
        self._reporter.set_slot_gauges(slot_state(store, self._slot))
        return {}
