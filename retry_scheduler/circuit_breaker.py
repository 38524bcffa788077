"""
The breaker: keeps the scheduler from claiming rows that it could not send.

Pure: told of outages and answers, with the time. Two outages in a row open it for the cooldown. After that it is
half-open: a probe of a few rows goes out, and its answer closes the breaker, another outage opens it again. A refused
message is an answer: it can only ever close the breaker.
"""

from __future__ import annotations

from enum import StrEnum

OUTAGES_TO_OPEN = 2
RETRY_SECONDS = 1.0
"""The pause after a first outage, which may have been a broker's restart or a lost connection."""


class BreakerState(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


class CircuitBreaker:
    def __init__(self, cooldown_seconds: float) -> None:
        self._cooldown_seconds = cooldown_seconds
        self._outages = 0
        self._wait_until = 0.0

    def outage(self, now: float) -> None:
        """The broker could not be reached, or did not answer."""
        self._outages += 1
        cooldown = self._cooldown_seconds
        self._wait_until = now + (cooldown if self._outages >= OUTAGES_TO_OPEN else min(RETRY_SECONDS, cooldown))

    def answered(self) -> None:
        """The broker confirmed or refused a message."""
        self._outages = 0
        self._wait_until = 0.0

    def state(self, now: float) -> BreakerState:
        if self._outages < OUTAGES_TO_OPEN:
            return BreakerState.CLOSED
        return BreakerState.OPEN if now < self._wait_until else BreakerState.HALF_OPEN

    def wait_seconds(self, now: float) -> float:
        """How long to keep away from the broker; 0 when it may be tried."""
        return max(0.0, self._wait_until - now)
