"""
RateLimit: at most `rate` messages a second, spread evenly.

A batch holds a tenth of a second's messages, and `wait` sleeps for the rest of that time. Time lost in a slow batch is
not made up with a burst.
"""

from __future__ import annotations

import time
from collections.abc import Callable

BATCHES_PER_SECOND = 10


class RateLimit:
    """Without a rate, `wait` returns at once."""

    def __init__(
        self,
        rate: float | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rate = rate
        self._clock = clock
        self._sleep = sleep
        self._next_batch_at = clock()

    def batch_size(self, largest: int) -> int:
        """How many messages to take at once: from 1 to `largest`."""
        return largest if self._rate is None else max(1, min(largest, int(self._rate / BATCHES_PER_SECOND)))

    def wait(self, count: int) -> None:
        """Sleep until the next batch may begin, after a batch of `count` messages."""
        if self._rate is None:
            return
        self._next_batch_at += count / self._rate
        now = self._clock()
        if self._next_batch_at > now:
            self._sleep(self._next_batch_at - now)
        else:
            self._next_batch_at = now
