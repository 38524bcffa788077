"""Health for probes, and the liveness file, on a clock that the tests advance."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from outrider.errors import SettingsError
from outrider.telemetry.health import Health


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "alive"


def touches(file: Path) -> Callable[[], bool]:
    """Whether the file was touched since the last call: its time is set far back each time."""

    def touched() -> bool:
        if not file.exists():
            return False
        fresh = file.stat().st_mtime > 1
        os.utime(file, (1, 1))
        return fresh

    return touched


def test_a_service_is_healthy_from_the_start_and_for_stall_seconds(clock: Clock) -> None:
    health = Health(stall_seconds=30, clock=clock)
    assert health.healthz() == (
        True,
        {"healthy": True, "reason": "", "last_turn_seconds": 0.0, "last_heard_seconds": None},
    )
    clock.now += 30
    assert health.healthz()[0]


def test_a_loop_that_does_not_run_is_unhealthy_until_it_runs_again(clock: Clock) -> None:
    health = Health(stall_seconds=30, clock=clock)
    clock.now += 31
    ok, facts = health.healthz()
    assert not ok
    assert facts["reason"] == "the main loop has not run for 31 s"
    health.record_loop()
    assert health.healthz()[0]


def test_a_silent_connection_is_unhealthy_although_the_loop_runs_until_it_answers(clock: Clock) -> None:
    health = Health(clock=clock)
    health.connection_answered()
    clock.now += 4
    health.connection_silent("no answer to a keepalive for 4 s")
    health.record_loop()
    ok, facts = health.healthz()
    assert not ok
    assert facts["reason"] == "the connection is silent: no answer to a keepalive for 4 s"
    assert facts["last_heard_seconds"] == 4.0
    health.connection_answered()
    assert health.healthz()[0]


def test_a_service_is_ready_when_it_is_connected_also_as_a_standby(clock: Clock) -> None:
    health = Health(clock=clock)
    assert health.readyz() == (False, {"ready": False, "role": "starting", "reason": "not connected yet"})
    health.set_ready("standby", "relay-1 holds the slot")
    assert health.readyz() == (True, {"ready": True, "role": "standby", "reason": "relay-1 holds the slot"})
    health.set_ready("active")
    assert health.readyz() == (True, {"ready": True, "role": "active", "reason": ""})
    health.set_not_ready("database: connection lost")
    assert health.readyz() == (False, {"ready": False, "role": "starting", "reason": "database: connection lost"})


def test_a_stalled_service_is_not_ready_and_says_why(clock: Clock) -> None:
    health = Health(stall_seconds=5, clock=clock)
    health.set_ready("active")
    clock.now += 6
    ok, facts = health.readyz()
    assert not ok
    assert facts == {"ready": False, "role": "active", "reason": "the main loop has not run for 6 s"}


def test_a_service_that_stops_is_healthy_and_not_ready(clock: Clock) -> None:
    health = Health(clock=clock)
    health.set_ready("active")
    health.set_stopping()
    assert health.healthz()[0]
    assert health.readyz() == (False, {"ready": False, "role": "stopping", "reason": "shutting down"})
    assert health.role == "stopping"


def test_the_liveness_file_exists_from_start_to_end(file: Path, clock: Clock) -> None:
    with Health(liveness_file=file, clock=clock) as health:
        assert file.exists()
        health.record_loop()
        assert file.stat().st_size == 0
    assert not file.exists()
    health.record_loop()
    clock.now += 10
    health.record_loop()
    assert not file.exists()


def test_the_liveness_file_is_touched_at_most_once_a_second(file: Path, clock: Clock) -> None:
    touched = touches(file)
    with Health(liveness_file=file, clock=clock) as health:
        assert touched()
        clock.now += 0.9
        health.record_loop()
        assert not touched()
        clock.now += 0.2
        health.record_loop()
        assert touched()
        health.record_loop()
        assert not touched()


def test_the_liveness_file_is_not_touched_while_the_connection_is_silent(file: Path, clock: Clock) -> None:
    touched = touches(file)
    with Health(liveness_file=file, clock=clock) as health:
        assert touched()
        health.connection_silent("blackhole")
        clock.now += 2
        health.record_loop()
        assert not touched()
        health.connection_answered()
        health.record_loop()
        assert touched()


def test_a_removed_liveness_file_is_created_again(file: Path, clock: Clock) -> None:
    with Health(liveness_file=file, clock=clock) as health:
        file.unlink()
        clock.now += 2
        health.record_loop()
        assert file.exists()


def test_the_liveness_file_of_a_killed_service_is_reused(file: Path, clock: Clock) -> None:
    file.touch()
    with Health(liveness_file=file, clock=clock):
        assert file.exists()
    assert not file.exists()


def test_an_unwritable_place_is_a_settings_error_in_one_line(tmp_path: Path, clock: Clock) -> None:
    missing = tmp_path / "missing" / "alive"
    with pytest.raises(SettingsError) as caught, Health(liveness_file=missing, clock=clock):
        pass
    assert str(caught.value) == f"liveness_file: cannot write {missing}: No such file or directory"


@pytest.mark.parametrize("what", ["a file with contents", "a directory", "a symbolic link", "below a file"])
def test_a_path_of_another_file_is_refused_and_the_file_not_changed(what: str, tmp_path: Path) -> None:
    path = tmp_path / "precious"
    match what:
        case "a file with contents":
            path.write_text("do not delete")
        case "a directory":
            path.mkdir()
        case "a symbolic link":
            (tmp_path / "target").touch()
            path.symlink_to(tmp_path / "target")
        case _:
            path.write_text("a file")
            path = path / "alive"
    with pytest.raises(SettingsError, match=r"^liveness_file: "), Health(liveness_file=path):
        pass
    assert (tmp_path / "precious").exists()


def test_a_file_that_cannot_be_touched_any_more_is_logged_once_and_the_service_goes_on(
    tmp_path: Path, clock: Clock
) -> None:
    directory = tmp_path / "run"
    directory.mkdir()
    with capture_logs() as events, Health(liveness_file=directory / "alive", clock=clock) as health:
        (directory / "alive").unlink()
        directory.rmdir()
        for _ in range(3):
            clock.now += 2
            health.record_loop()
        assert health.healthz()[0]
    assert [event["event"] for event in events] == ["liveness_file_not_written"]
