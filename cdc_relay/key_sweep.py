"""
KeySweep: unblocks keys that have no row any more, so that keys that are never written again do not fill the memory.

A sweep begins every SWEEP_SECONDS and asks about the blocked keys, KEYS_AT_ONCE at a time with a pause in between: the
reading thread waits only for look-ups of so many keys in an index, however many keys are blocked.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from outrider.cdc_relay.pipeline import Pipeline
from outrider.storage.store import Store

SWEEP_SECONDS = 30.0
PAUSE_SECONDS = 0.1
KEYS_AT_ONCE = 500


class KeySweep:
    def __init__(self, store: Store, pipeline: Pipeline, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._pipeline = pipeline
        self._clock = clock
        self._left: list[str] = []  # keys of the running sweep
        self._due = clock() + SWEEP_SECONDS

    def run_due(self) -> None:
        """Ask about the next keys, if it is time. Raises DatabaseError."""
        if not self._pipeline.blocked_keys or self._clock() < self._due:
            return
        if not self._left:
            self._left = list(self._pipeline.blocked_keys)
        keys = self._left[-KEYS_AT_ONCE:]
        del self._left[-KEYS_AT_ONCE:]
        self._pipeline.unblock_keys(self._store.keys_without_rows(keys))
        self._due = self._clock() + (PAUSE_SECONDS if self._left else SWEEP_SECONDS)
