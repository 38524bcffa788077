"""
CircuitBreaker: stops the scheduler from claiming rows while the broker is away.

    closed     messages are sent; a first outage only makes a short pause
    open       two outages in a row: nothing is sent for the cooldown
    half-open  the cooldown is over: one message is sent as a probe; an answer closes the breaker, an outage opens it

A refused message is an answer. Pure: outages and answers are recorded with the time.
"""

from __future__ import annotations

from enum import StrEnum

OUTAGES_TO_OPEN = 2
RETRY_SECONDS = 1.0
"""The pause after a first outage, which may have been a restart of the broker or a lost connection."""


class BreakerState(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


class CircuitBreaker:
    def __init__(self, cooldown_seconds: float) -> None:
        self._cooldown_seconds = cooldown_seconds
        self._outages = 0
        self._wait_until = 0.0

    def record_outage(self, now: float) -> None:
        """The broker could not be reached, or did not answer."""
        self._outages += 1
        cooldown = self._cooldown_seconds
        self._wait_until = now + (cooldown if self._outages >= OUTAGES_TO_OPEN else min(RETRY_SECONDS, cooldown))

    def record_answer(self) -> None:
        """The broker confirmed or refused a message."""
        self._outages = 0
        self._wait_until = 0.0

    def state(self, now: float) -> BreakerState:
        if self._outages < OUTAGES_TO_OPEN:
            return BreakerState.CLOSED
        return BreakerState.OPEN if now < self._wait_until else BreakerState.HALF_OPEN

    def wait_seconds(self, now: float) -> float:
        """How long nothing may be sent; 0 when the broker may be tried."""
        return max(0.0, self._wait_until - now)
