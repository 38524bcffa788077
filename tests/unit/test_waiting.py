"""wait_for: its return value, and its error when the deadline has passed."""

from __future__ import annotations

import time

import pytest

from tests.fixtures.waiting import wait_for


def test_it_returns_the_first_true_value() -> None:
    values = iter([None, 0, "", "there", "later"])
    assert wait_for(lambda: next(values)) == "there"


def test_the_error_shows_the_last_value() -> None:
    with pytest.raises(AssertionError, match=r"no rows came \(within 0\.02 s; last value: \[\]\)"):
        wait_for(list, deadline_seconds=0.02, message="no rows came")


def test_the_condition_is_evaluated_at_least_once() -> None:
    assert wait_for(lambda: 1, deadline_seconds=0) == 1


def test_an_error_of_the_condition_is_not_swallowed() -> None:
    def broken() -> bool:
        raise LookupError("broken condition")

    with pytest.raises(LookupError):
        wait_for(broken)


def test_it_does_not_wait_longer_than_the_deadline() -> None:
    began = time.monotonic()
    with pytest.raises(AssertionError):
        wait_for(lambda: False, deadline_seconds=0.05)
    assert time.monotonic() - began < 1
