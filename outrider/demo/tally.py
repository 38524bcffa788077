"""
The ledger: what was committed, what was rolled back, what arrived and how long that took. No I/O; thread-safe.

Both sides are threads of one process, so one monotonic clock measures a message from just before its INSERT to its
arrival at the consumer. Messages that the outage touched are counted apart: those in flight when the broker was killed,
those committed while it was gone, and those committed until everything had caught up: nothing waited for longer than
CAUGHT_UP_SECONDS any more.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

SECONDS_SHOWN = 60
TICKS_PER_SECOND = 2
CAUGHT_UP_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class Figures:
    """The state of the ledger at one moment."""

    committed: int
    delivered: int
    missing: int
    """Committed and not delivered: on their way, or lost once nothing is on its way any more."""
    duplicates: int
    rolled_back: int
    leaked: int
    """Rolled back and delivered all the same: there must be none."""
    p50_ms: float | None
    p99_ms: float | None
    outage_messages: int
    outage_max_ms: float | None
    outage_seconds: float
    deliveries: tuple[int, ...]
    """Arrivals per half second, oldest first, up to a minute back."""


class DeliveryTally:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._started = time.monotonic()
        self._placed: dict[str, float] = {}
        self._committed: set[str] = set()
        self._rolled_back: set[str] = set()
        self._arrived: set[str] = set()
        self._arrivals = 0
        self.last_arrival = self._started
        self._per_tick: Counter[int] = Counter()
        self._calm_ms: list[float] = []
        self._outage_ms: list[float] = []
        self._killed_at: float | None = None
        self._back_at: float | None = None
        self._over_at: float | None = None
        self._underway: dict[str, float] = {}  # placed and not arrived, oldest first

    def placing(self, event_id: str) -> None:
        """Before the INSERT: the message may arrive before its commit returns."""
        with self._lock:
            self._placed[event_id] = self._underway[event_id] = time.monotonic()

    def committed(self, event_id: str) -> None:
        with self._lock:
            self._committed.add(event_id)

    def rolled_back(self, event_id: str) -> None:
        with self._lock:
            self._rolled_back.add(event_id)
            self._underway.pop(event_id, None)

    def broker_killed(self) -> None:
        with self._lock:
            self._killed_at = time.monotonic()

    def broker_back(self) -> None:
        with self._lock:
            self._back_at = time.monotonic()

    def arrived(self, event_id: str) -> None:
        now = time.monotonic()
        with self._lock:
            self._arrivals += 1
            self.last_arrival = now
            self._per_tick[int((now - self._started) * TICKS_PER_SECOND)] += 1
            if event_id in self._arrived:
                return
            self._arrived.add(event_id)
            placed = self._placed.get(event_id, now)
            (self._outage_ms if self._touched_by_outage(placed) else self._calm_ms).append((now - placed) * 1000)
            self._underway.pop(event_id, None)
            if self._back_at is not None and self._over_at is None:
                oldest = next(iter(self._underway.values()), now)
                self._over_at = now if now - oldest < CAUGHT_UP_SECONDS else None

    def is_complete(self) -> bool:
        """Whether everything that was committed has arrived."""
        with self._lock:
            return self._committed <= self._arrived

    def figures(self) -> Figures:
        with self._lock:
            calm = sorted(self._calm_ms)
            now = time.monotonic()
            outage = 0.0 if self._killed_at is None else (self._back_at or now) - self._killed_at
            tick = int((now - self._started) * TICKS_PER_SECOND)
            return Figures(
                committed=len(self._committed),
                delivered=len(self._arrived & self._committed),
                missing=len(self._committed - self._arrived),
                duplicates=self._arrivals - len(self._arrived),
                rolled_back=len(self._rolled_back),
                leaked=len(self._arrived & self._rolled_back),
                p50_ms=percentile(calm, 50),
                p99_ms=percentile(calm, 99),
                outage_messages=len(self._outage_ms),
                outage_max_ms=max(self._outage_ms, default=None),
                outage_seconds=outage,
                deliveries=tuple(
                    self._per_tick[n] for n in range(max(0, tick - SECONDS_SHOWN * TICKS_PER_SECOND), tick)
                ),
            )

    def _touched_by_outage(self, placed: float) -> bool:
        """Decided when a message arrives: one that was placed before the kill and arrives after it was in flight."""
        return self._killed_at is not None and (self._over_at is None or placed < self._over_at)


def percentile(ordered: Sequence[float], percent: int) -> float | None:
    """The nearest-rank percentile of sorted values; None for no values."""
    if not ordered:
        return None
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]
