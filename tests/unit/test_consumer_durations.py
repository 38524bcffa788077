"""Durations have one spelling."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.consumer.durations import LONGEST_MILLISECONDS, parse_duration


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("1ms", 1),
        ("500ms", 500),
        ("1s", 1000),
        ("59s999ms", 59_999),
        ("1m", 60_000),
        ("1m30s", 90_000),
        ("90m", 5_400_000),
    ],
)
def test_a_duration_is_minutes_seconds_and_milliseconds(text: str, milliseconds: int) -> None:
    assert parse_duration(text) == (text, milliseconds)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0s",
        "60s",
        "01s",
        "1h",
        "-1s",
        "+1s",
        "1.5s",
        "1000ms",
        "1s1m",
        "1 s",
        "1S",
        "s",
        "10",
        "1s1s",
        "٣s",
        "1s\n",
        "71583m",
    ],
)
def test_any_other_spelling_is_refused_with_what_is_expected(text: str) -> None:
    with pytest.raises(ValueError, match=r"500ms, 10s, 1m30s|longer than the broker"):
        parse_duration(text)


@pytest.mark.parametrize("value", [1, 1.5, None, b"1s"])
def test_a_duration_is_text(value: object) -> None:
    with pytest.raises(TypeError, match="1m30s"):
        parse_duration(value)


@given(st.integers(1, LONGEST_MILLISECONDS))
def test_every_duration_can_be_spelled(milliseconds: int) -> None:
    minutes, rest = divmod(milliseconds, 60_000)
    seconds, rest = divmod(rest, 1000)
    parts = ((minutes, "m"), (seconds, "s"), (rest, "ms"))
    text = "".join(f"{number}{unit}" for number, unit in parts if number)
    assert parse_duration(text).milliseconds == milliseconds
