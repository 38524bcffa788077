"""The rate limit, on a clock that the tests advance."""

from __future__ import annotations

from outrider.operations.rate_limit import RateLimit


class Clock:
    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(round(seconds, 6))
        self.now += seconds


def limited(rate: float | None) -> tuple[RateLimit, Clock]:
    clock = Clock()
    return RateLimit(rate, clock=lambda: clock.now, sleep=clock.sleep), clock


def test_without_a_rate_nothing_waits() -> None:
    limit, clock = limited(None)
    limit.wait(1_000_000)
    assert clock.slept == []
    assert limit.batch_size(1000) == 1000


def test_a_batch_is_a_tenth_of_a_second_within_one_and_the_largest_size() -> None:
    assert [limited(rate)[0].batch_size(1000) for rate in (0.5, 50, 1234, 1_000_000)] == [1, 5, 123, 1000]


def test_the_time_that_a_batch_took_is_subtracted() -> None:
    limit, clock = limited(100)
    clock.now += 0.04
    limit.wait(10)
    limit.wait(10)
    assert clock.slept == [0.06, 0.1]


def test_time_lost_in_a_slow_batch_is_not_made_up_with_a_burst() -> None:
    limit, clock = limited(100)
    clock.now += 60
    limit.wait(10)
    assert clock.slept == []
    limit.wait(10)
    assert clock.slept == [0.1]
