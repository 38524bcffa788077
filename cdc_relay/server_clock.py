"""
The database server's clock, estimated from the replication stream. No decision depends on the local wall clock.

Every frame of the stream carries the time at which the server sent it. A frame that waited in a buffer shows an older
time, so the largest observed offset to the local monotonic clock is the most accurate one.
"""

from __future__ import annotations

import time


class ServerClock:
    """Current server time (see storage.server_time). One thread observes; any thread may call now()."""

    def __init__(self, now: int) -> None:
        self._offset = now - time.monotonic_ns() // 1000

    def observe(self, sent_at: int) -> None:
        offset = sent_at - time.monotonic_ns() // 1000
        if offset > self._offset:
            self._offset = offset

    def now(self) -> int:
        return time.monotonic_ns() // 1000 + self._offset
