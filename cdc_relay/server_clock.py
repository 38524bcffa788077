"""
The database server's clock, as the replication stream tells it. No local wall clock decides anything.

Every message of the stream carries the time at which the server sent it. What has waited in a buffer since then looks
older than it is, so the largest difference to the local monotonic clock is the best one.
"""

from __future__ import annotations

import time


class ServerClock:
    """Microseconds since 2000-01-01 UTC, on the server. One thread observes, any thread may ask."""

    def __init__(self, now: int) -> None:
        self._offset = now - time.monotonic_ns() // 1000

    def observe(self, sent_at: int) -> None:
        offset = sent_at - time.monotonic_ns() // 1000
        if offset > self._offset:
            self._offset = offset

    def now(self) -> int:
        return time.monotonic_ns() // 1000 + self._offset
