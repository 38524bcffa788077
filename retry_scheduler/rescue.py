"""
Rescue: ordered rows that still wait although nothing is ahead of them any more fall due.

Whoever removes the head of a key wakes the rows behind it. A row that was being parked at that very moment is missed,
and a crash can come in between; this sweep finds them. It walks the keys that have waiting rows, one index probe each:
nothing in a healthy outbox.

Rows of a killed scheduler need no rescue: they fall due when the lease ends.
"""

from __future__ import annotations

from outbox.store import Store


class Rescue:
    name = "rescue"
    interval_seconds = 1.0
    unfinished = False

    def run_once(self, store: Store) -> dict[str, int]:
        """Returns how many rows fell due."""
        return {"rescued": len(store.unpark_heads())}
