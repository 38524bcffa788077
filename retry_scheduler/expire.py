"""
Expire: messages past their `expires_at` move to the dead letters, with the reason `expired`, in small batches.

Only rows that nobody is sending: those that back off, wait behind their key, are delayed, or are due. A row that the
relay still has is left to it; a message that expires between claim and send is buried by the delivery.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from outrider.storage.store import Store

BATCH_SIZE = 1000


class Expire:
    name = "expire"
    interval_seconds = 5.0

    def __init__(self, on_expired: Callable[[str, int], None]) -> None:
        """`on_expired` is told how many messages of each type expired."""
        self._on_expired = on_expired
        self.unfinished = False

    def run_once(self, store: Store) -> dict[str, int]:
        """One batch; returns how many messages expired."""
        types = store.expire(batch_size=BATCH_SIZE)
        self.unfinished = len(types) == BATCH_SIZE
        for event_type, count in Counter(types).items():
            self._on_expired(event_type, count)
        return {"expired": len(types)}
