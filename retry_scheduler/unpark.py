"""
Unpark: makes parked rows due that have become the head of their ordering key.

Settling the head of a key unparks the rows behind it. A row that was being parked at that moment is missed, and so is
one after a crash between the two; this task finds them. It reads one index entry for each key with parked rows, and
nothing if there are none. It also runs soon after rows were parked, because that is when one can be missed.

Rows of a killed scheduler need no task: they fall due when their lease ends.
"""

from __future__ import annotations

from outrider.runtime.maintenance import MaintenanceTask
from outrider.storage.store import Store

AFTER_PARKING_SECONDS = 0.5


class Unpark(MaintenanceTask):
    name = "unpark"
    interval_seconds = 5.0

    def run_once(self, store: Store) -> dict[str, int]:
        return {"unparked": len(store.unpark_heads())}
