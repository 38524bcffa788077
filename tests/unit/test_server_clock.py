"""The estimate of the database's clock: it follows the server forward and back, and does not believe old frames."""

from __future__ import annotations

import time

import pytest

from outrider.cdc_relay import server_clock
from outrider.cdc_relay.server_clock import ServerClock

SECOND = 1_000_000
TOLERANCE = 2000
"""What the calls themselves take, in microseconds, and more."""


class Server:
    """A database server whose clock a test sets."""

    def __init__(self) -> None:
        self.ahead = 1000 * SECOND  # of the local monotonic clock
        self.readings = 0

    def clock(self) -> int:
        return self.ahead + time.monotonic_ns() // 1000

    def read(self) -> int:
        self.readings += 1
        return self.clock()


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def clock(server: Server, monkeypatch: pytest.MonkeyPatch) -> ServerClock:
    monkeypatch.setattr(server_clock, "READ_INTERVAL_SECONDS", 0.0)
    return ServerClock(server.read)


def error_of(clock: ServerClock, server: Server) -> int:
    return clock.now() - server.clock()


def test_the_server_is_not_asked_while_its_frames_fit(clock: ServerClock, server: Server) -> None:
    assert [clock.observe(server.clock() - late) for late in (0, 1000, 150_000)] == [0.0, 0.0, 0.0]
    assert abs(error_of(clock, server)) < TOLERANCE
    assert server.readings == 1


def test_a_clock_that_is_set_back_is_followed_with_the_next_frame(clock: ServerClock, server: Server) -> None:
    server.ahead -= 60 * SECOND
    jump = clock.observe(server.clock())
    assert jump == pytest.approx(-60, abs=0.1)
    assert abs(error_of(clock, server)) < TOLERANCE
    assert clock.observe(server.clock()) == 0.0


def test_a_clock_that_is_set_forward_is_followed_with_the_next_frame(clock: ServerClock, server: Server) -> None:
    server.ahead += 60 * SECOND
    assert clock.observe(server.clock()) == pytest.approx(60, abs=0.1)
    assert abs(error_of(clock, server)) < TOLERANCE


def test_frames_that_waited_in_a_buffer_do_not_set_the_clock_back(clock: ServerClock, server: Server) -> None:
    assert clock.observe(server.clock() - 40 * SECOND) == 0.0
    assert abs(error_of(clock, server)) < TOLERANCE
    assert server.readings == 2


def test_a_slow_drift_is_followed_and_is_no_jump(clock: ServerClock, server: Server) -> None:
    server.ahead -= SECOND // 2
    assert clock.observe(server.clock()) == 0.0
    assert abs(error_of(clock, server)) < TOLERANCE


def test_the_server_is_asked_once_in_an_interval(server: Server) -> None:
    clock = ServerClock(server.read)
    for _ in range(10):
        clock.observe(server.clock() - 40 * SECOND)
    assert server.readings == 2
