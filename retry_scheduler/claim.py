"""
Claim due rows: one statement locks, leases and reads them.

Every claim has its own token, and later statements about its rows name it: a scheduler whose lease has ended changes
nothing. The batch size doubles while batches are full, and starts small again after one that is not, so that several
schedulers share a small backlog and drain a large one fast.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from outrider.errors import DatabaseError
from outrider.runtime.crash_points import crash_point
from outrider.storage.message import Message
from outrider.storage.scheduler_queries import UNLIMITED_BYTES
from outrider.storage.store import Store

FIRST_BATCH_SIZE = 50
SLOW_CLAIM_SHARE = 0.25
"""A claim that took this share of its lease, or more, was slow."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows that are leased to this scheduler."""

    claim: str
    messages: Sequence[Message]
    parked: int
    """Due rows that were behind the head of their key, and were parked."""
    lease_ends_at: float
    """Monotonic. Counted from before the statement, so that the lease does not end earlier in the database."""

    def server_time(self, now: float) -> int:
        """The database's clock at this monotonic time, computed from the lease that the rows carry."""
        leased_until = self.messages[0].next_attempt_at
        return leased_until + round((now - self.lease_ends_at) * 1_000_000)

    @property
    def byte_count(self) -> int:
        return sum(message.size for message in self.messages)


class Claimer:
    """Claims for one scheduler."""

    def __init__(
        self,
        name: str,
        *,
        batch_size: int,
        batch_bytes: int = UNLIMITED_BYTES,
        lease_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name = name
        self._largest = batch_size
        self._size = min(FIRST_BATCH_SIZE, batch_size)
        self._batch_bytes = batch_bytes
        self._lease_seconds = lease_seconds
        self._clock = clock
        self._claims = 0
        self._after_claim = crash_point("scheduler.after_claim")

    def claim(self, store: Store, *, at_most: int | None = None) -> Batch:
        """The next batch, which may be empty. `at_most` limits a probe, and leaves the batch size as it is."""
        size = self._size if at_most is None else min(at_most, self._size)
        self._claims += 1
        claim = f"{self._name}/{self._claims}-{secrets.token_hex(4)}"
        began = self._clock()
        lease_ends_at = began + self._lease_seconds
        try:
            messages, parked = store.claim_due(
                claim, batch_size=size, batch_bytes=self._batch_bytes, lease_seconds=self._lease_seconds
            )
        except DatabaseError:
            self.start_small()
            raise
        if messages:
            self._after_claim()
        if self._clock() - began > self._lease_seconds * SLOW_CLAIM_SHARE:
            self.start_small()
        elif at_most is None:
            full = len(messages) + parked >= size
            self._size = min(self._size * 2, self._largest) if full else min(FIRST_BATCH_SIZE, self._largest)
        return Batch(claim, messages, parked, lease_ends_at)

    def start_small(self) -> None:
        """Claim one row next."""
        self._size = 1
