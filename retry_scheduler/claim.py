"""
Claim due rows: one statement that locks, leases and reads them.

A claim has a token of its own, and every later statement about its rows names it: a scheduler whose lease has ended
changes nothing any more. Batches double while they come back full, and start small again when they do not, so that
several schedulers share a small backlog and drain a large one fast.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from outrider.runtime.crash_points import crash_point
from outrider.storage.message import Message
from outrider.storage.store import Store

FIRST_BATCH_SIZE = 50


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows that are ours until the lease ends."""

    claim: str
    messages: Sequence[Message]
    parked: int
    """Due rows that were found behind the head of their key, and set aside."""
    full: bool
    """There are probably more."""
    claimed_at: float
    """Monotonic, from before the statement: the lease ends here no later than there."""
    lease_seconds: float

    @property
    def lease_ends_at(self) -> float:
        return self.claimed_at + self.lease_seconds

    def server_time(self, now: float) -> int:
        """The database's clock at this monotonic time; the rows' own lease tells what it was at the claim."""
        leased_until = self.messages[0].next_attempt_at
        return leased_until + round((now - self.lease_ends_at) * 1_000_000)


class Claimer:
    """Claims for one scheduler."""

    def __init__(
        self, name: str, *, batch_size: int, lease_seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._name = name
        self._largest = batch_size
        self._size = min(FIRST_BATCH_SIZE, batch_size)
        self._lease_seconds = lease_seconds
        self._clock = clock
        self._claims = 0
        self._after_claim = crash_point("scheduler.after_claim")

    def claim(self, store: Store, *, at_most: int | None = None) -> Batch:
        """The next batch, of `at_most` rows where a probe is wanted. It may be empty."""
        size = self._size if at_most is None else min(at_most, self._size)
        self._claims += 1
        claim = f"{self._name}/{self._claims}-{secrets.token_hex(4)}"
        claimed_at = self._clock()
        messages, parked = store.claim_due(claim, batch_size=size, lease_seconds=self._lease_seconds)
        if messages:
            self._after_claim()
        full = len(messages) + parked >= size
        if at_most is None:
            self._size = min(self._size * 2, self._largest) if full else min(FIRST_BATCH_SIZE, self._largest)
        return Batch(claim, messages, parked, full, claimed_at, self._lease_seconds)
