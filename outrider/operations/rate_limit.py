"""
RateLimit: no more than so many messages a second, evenly.

Work is done in batches of a tenth of a second's messages, each followed by the rest of its time. Time that a slow batch
lost is not caught up with a burst.
"""

from __future__ import annotations

import time
from collections.abc import Callable

BATCHES_PER_SECOND = 10


class RateLimit:
    """A rate of None does not wait."""

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
        self._due = clock()

    def batch_size(self, most: int) -> int:
        """How many messages to take at once, `most` of them at most."""
        return most if self._rate is None else max(1, min(most, int(self._rate / BATCHES_PER_SECOND)))

    def wait(self, count: int) -> None:
        """After a batch of so many: until the next may begin."""
        if self._rate is None:
            return
        self._due += count / self._rate
        now = self._clock()
        if self._due > now:
            self._sleep(self._due - now)
        else:
            self._due = now
