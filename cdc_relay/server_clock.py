"""
The database server's clock, estimated from the replication stream. No decision depends on the local wall clock.

Every frame of the stream carries the time at which the server sent it. A frame that waited in a buffer shows an older
time, so a frame can only show that the server's clock is ahead of the estimate. A frame that is much older than the
estimate waited, or the server's clock was set back: then the server is asked for its clock, once a second at most.
"""

from __future__ import annotations

import time
from collections.abc import Callable

DOUBT_SECONDS = 0.2
"""A frame this much older than the estimate makes the estimate doubtful."""
READ_INTERVAL_SECONDS = 1.0
JUMP_SECONDS = 1.0
"""A change that counts as a jump: clocks that are set by small steps or run at different speeds stay below it."""


class ServerClock:
    """Current server time (see storage.server_time). One thread observes; any thread may call now()."""

    def __init__(self, read: Callable[[], int]) -> None:
        """`read` asks the server for its clock. It is called here, and by `observe`, on its thread."""
        self._read = read
        self._uncertainty = 0
        self._offset = self._read_offset()
        self._read_due = time.monotonic()

    def observe(self, sent_at: int) -> float:
        """Take note of a frame's time. Returns by how many seconds the server's clock has jumped: nearly always 0."""
        before, offset = self._offset, sent_at - time.monotonic_ns() // 1000
        allowed = self._uncertainty + JUMP_SECONDS * 1_000_000
        if offset > before:
            self._offset, self._uncertainty = offset, 0
        elif before - offset > DOUBT_SECONDS * 1_000_000 and time.monotonic() >= self._read_due:
            self._read_due = time.monotonic() + READ_INTERVAL_SECONDS
            self._offset = max(offset, self._read_offset())
            allowed += self._uncertainty
        change = self._offset - before
        return change / 1e6 if abs(change) > allowed else 0.0

    def now(self) -> int:
        return time.monotonic_ns() // 1000 + self._offset

    def _read_offset(self) -> int:
        """The smallest offset that the answer allows: the next frame corrects it upwards."""
        asked = time.monotonic_ns() // 1000
        server_time = self._read()
        answered = time.monotonic_ns() // 1000
        self._uncertainty = answered - asked
        return server_time - answered
