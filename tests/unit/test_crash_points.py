"""Crash points: chosen by name and visit, and never by accident."""

from __future__ import annotations

import os
import signal

import pytest

from outrider.errors import SettingsError
from outrider.runtime.crash_points import VARIABLE, chosen_point, crash_point


@pytest.mark.parametrize("environment", [{}, {VARIABLE: ""}])
def test_no_point_is_chosen_by_default(environment: dict[str, str]) -> None:
    assert chosen_point(environment) == ("", 0)


def test_a_point_is_chosen_by_name_and_optionally_by_visit() -> None:
    assert chosen_point({VARIABLE: "relay.after_read"}) == ("relay.after_read", 1)
    assert chosen_point({VARIABLE: "relay.after_read:12"}) == ("relay.after_read", 12)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("relay.after_raed", "no crash point 'relay.after_raed' (did you mean relay.after_read?)"),
        ("xyz", "no crash point 'xyz'"),
        ("relay.after_read:", "not a number of visits"),
        ("relay.after_read:0", "not a number of visits"),
        ("relay.after_read:-1", "not a number of visits"),
        ("relay.after_read:1:1", "not a number of visits"),
    ],
)
def test_a_point_that_does_not_exist_is_refused(text: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, text)
    with pytest.raises(SettingsError) as error:
        crash_point("scheduler.after_claim")  # any point: the mistake is found at start
    assert words in str(error.value)


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The process ids and signals that os.kill was called with."""
    signals: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: signals.append((pid, number)))
    return signals


def test_only_the_chosen_visit_of_the_chosen_point_kills(
    killed: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "relay.after_read:3")
    crash, other = crash_point("relay.after_read"), crash_point("relay.after_publish")
    for _ in range(5):
        other()
    crash()
    crash()
    assert killed == []
    crash()
    assert killed == [(os.getpid(), signal.SIGKILL)]
