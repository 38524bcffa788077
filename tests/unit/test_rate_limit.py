"""A pace, on a clock of its own."""

from __future__ import annotations

from outrider.operations.rate_limit import RateLimit


class Clock:
    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(round(seconds, 6))
        self.now += seconds


def paced(rate: float | None) -> tuple[RateLimit, Clock]:
    clock = Clock()
    return RateLimit(rate, clock=lambda: clock.now, sleep=clock.sleep), clock


def test_without_a_rate_nothing_waits() -> None:
    pace, clock = paced(None)
    pace.wait(1_000_000)
    assert clock.slept == []
    assert pace.batch_size(1000) == 1000


def test_a_batch_is_a_tenth_of_a_second_and_never_more_than_wanted_or_less_than_one() -> None:
    assert [paced(rate)[0].batch_size(1000) for rate in (0.5, 50, 1234, 1_000_000)] == [1, 5, 123, 1000]


def test_the_time_of_the_work_itself_counts() -> None:
    pace, clock = paced(100)
    clock.now += 0.04
    pace.wait(10)
    pace.wait(10)
    assert clock.slept == [0.06, 0.1]


def test_time_lost_in_a_slow_batch_is_not_caught_up_with_a_burst() -> None:
    pace, clock = paced(100)
    clock.now += 60
    pace.wait(10)
    assert clock.slept == []
    pace.wait(10)
    assert clock.slept == [0.1]
