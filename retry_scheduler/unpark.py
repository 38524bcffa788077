"""
Unpark: ordered rows that still wait although nothing is ahead of them any more fall due.

Whoever removes the head of a key wakes the rows behind it. A row that was being parked at that very moment is missed,
and a crash can come in between; this sweep finds them. It walks the keys that have waiting rows, one index probe each:
nothing in a healthy outbox. Soon after rows have been parked it comes by early: that is when one can be missed.

Rows of a killed scheduler need no rescue: they fall due when the lease ends.
"""

from __future__ import annotations

from outrider.storage.store import Store

AFTER_PARKING_SECONDS = 0.5


class Unpark:
    name = "rescue"
    interval_seconds = 5.0
    unfinished = False

    def run_once(self, store: Store) -> dict[str, int]:
        """Returns how many rows fell due."""
        return {"rescued": len(store.unpark_heads())}
