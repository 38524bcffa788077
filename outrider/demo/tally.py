"""
DeliveryTally: counts committed, rolled-back and delivered messages, and measures latency. No I/O; thread-safe.

Shop and consumer are threads of one process, so one monotonic clock measures each message from just before its INSERT
to its arrival at the consumer. Messages affected by the outage are counted separately: those in flight at the kill,
those committed during the outage, and those committed before the backlog was delivered (no message had been waiting
longer than CAUGHT_UP_SECONDS).
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
    """The state of the tally at one moment."""

    committed: int
    delivered: int
    duplicates: int
    rolled_back: int
    rolled_back_but_delivered: int
    """Must be 0."""
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
        self._normal_ms: list[float] = []
        self._outage_ms: list[float] = []
        self._killed_at: float | None = None
        self._back_at: float | None = None
        self._caught_up_at: float | None = None
        self._undelivered: dict[str, float] = {}  # placed and not arrived, oldest first

    def placing(self, event_id: str) -> None:
        """Call before the INSERT: the message may arrive before its commit returns."""
        with self._lock:
            self._placed[event_id] = self._undelivered[event_id] = time.monotonic()

    def committed(self, event_id: str) -> None:
        with self._lock:
            self._committed.add(event_id)

    def rolled_back(self, event_id: str) -> None:
        with self._lock:
            self._rolled_back.add(event_id)
            self._undelivered.pop(event_id, None)

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
            (self._outage_ms if self._is_affected_by_outage(placed) else self._normal_ms).append((now - placed) * 1000)
            self._undelivered.pop(event_id, None)
            if self._back_at is not None and self._caught_up_at is None:
                oldest = next(iter(self._undelivered.values()), now)
                self._caught_up_at = now if now - oldest < CAUGHT_UP_SECONDS else None

    def is_complete(self) -> bool:
        """Whether every committed message has arrived."""
        with self._lock:
            return self._committed <= self._arrived

    def figures(self) -> Figures:
        with self._lock:
            normal = sorted(self._normal_ms)
            now = time.monotonic()
            outage = 0.0 if self._killed_at is None else (self._back_at or now) - self._killed_at
            tick = int((now - self._started) * TICKS_PER_SECOND)
            return Figures(
                committed=len(self._committed),
                delivered=len(self._arrived & self._committed),
                duplicates=self._arrivals - len(self._arrived),
                rolled_back=len(self._rolled_back),
                rolled_back_but_delivered=len(self._arrived & self._rolled_back),
                p50_ms=percentile(normal, 50),
                p99_ms=percentile(normal, 99),
                outage_messages=len(self._outage_ms),
                outage_max_ms=max(self._outage_ms, default=None),
                outage_seconds=outage,
                deliveries=tuple(
                    self._per_tick[n] for n in range(max(0, tick - SECONDS_SHOWN * TICKS_PER_SECOND), tick)
                ),
            )

    def _is_affected_by_outage(self, placed: float) -> bool:
        """Called on arrival: a message placed before the kill that arrives after it was in flight."""
        return self._killed_at is not None and (self._caught_up_at is None or placed < self._caught_up_at)


def percentile(ordered: Sequence[float], percent: int) -> float | None:
    """The nearest-rank percentile of sorted values; None for no values."""
    if not ordered:
        return None
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]
