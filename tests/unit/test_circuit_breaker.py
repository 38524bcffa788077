"""The circuit breaker: two outages in a row open it, the cooldown makes it half-open, an answer closes it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from outrider.retry_scheduler.circuit_breaker import RETRY_SECONDS, BreakerState, CircuitBreaker

COOLDOWN = 30.0


def opened_at(now: float) -> CircuitBreaker:
    breaker = CircuitBreaker(COOLDOWN)
    breaker.record_outage(now)
    breaker.record_outage(now)
    return breaker


def test_it_starts_closed_without_a_wait() -> None:
    breaker = CircuitBreaker(COOLDOWN)
    assert breaker.state(100.0) is BreakerState.CLOSED
    assert breaker.wait_seconds(100.0) == 0


def test_one_outage_makes_a_short_pause_and_does_not_open_it() -> None:
    breaker = CircuitBreaker(COOLDOWN)
    breaker.record_outage(100.0)
    assert breaker.state(100.0) is BreakerState.CLOSED
    assert breaker.wait_seconds(100.0) == RETRY_SECONDS
    assert breaker.wait_seconds(100.0 + RETRY_SECONDS) == 0


def test_two_outages_in_a_row_open_it_for_the_cooldown() -> None:
    breaker = opened_at(100.0)
    assert breaker.state(129.9) is BreakerState.OPEN
    assert breaker.wait_seconds(110.0) == 20.0
    assert breaker.state(130.0) is BreakerState.HALF_OPEN
    assert breaker.wait_seconds(130.0) == 0


def test_an_answer_between_two_outages_keeps_it_closed() -> None:
    breaker = CircuitBreaker(COOLDOWN)
    for now in range(100, 200, 10):
        breaker.record_outage(float(now))
        breaker.record_answer()
        breaker.record_outage(float(now))
        breaker.record_answer()
        assert breaker.state(float(now)) is BreakerState.CLOSED


def test_an_answer_to_the_probe_closes_it() -> None:
    breaker = opened_at(100.0)
    assert breaker.state(130.0) is BreakerState.HALF_OPEN
    breaker.record_answer()
    assert breaker.state(130.0) is BreakerState.CLOSED
    breaker.record_outage(131.0)
    assert breaker.state(131.0) is BreakerState.CLOSED


def test_an_outage_of_the_probe_opens_it_again() -> None:
    breaker = opened_at(100.0)
    breaker.record_outage(130.0)
    assert breaker.state(159.9) is BreakerState.OPEN
    assert breaker.state(160.0) is BreakerState.HALF_OPEN


def test_a_cooldown_shorter_than_the_retry_pause_is_respected() -> None:
    breaker = CircuitBreaker(0.2)
    breaker.record_outage(100.0)
    assert breaker.wait_seconds(100.0) < RETRY_SECONDS


@given(st.lists(st.booleans(), max_size=50))
def test_answers_alone_never_open_it_and_it_never_waits_longer_than_the_cooldown(outages: list[bool]) -> None:
    breaker = CircuitBreaker(COOLDOWN)
    for now, is_outage in enumerate(outages):
        if is_outage:
            breaker.record_outage(float(now))
        else:
            breaker.record_answer()
            assert breaker.state(float(now)) is BreakerState.CLOSED
        assert breaker.wait_seconds(float(now)) <= COOLDOWN
    if not any(outages):
        assert breaker.state(1000.0) is BreakerState.CLOSED
