"""Durations: one parser for retry delays and for the command line, and one text for equal durations."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.settings.durations import LONGEST_SECONDS, Duration, parse_duration


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("0s", 0),
        ("1ms", 1),
        ("500ms", 500),
        ("1s", 1000),
        ("1.5s", 1500),
        ("59s999ms", 59_999),
        ("1m", 60_000),
        ("1m30s", 90_000),
        ("90m", 5_400_000),
        ("1.5h", 5_400_000),
        ("2h", 7_200_000),
        ("7d", 604_800_000),
        ("1w", 604_800_000),
        ("1w1d1h1m1s1ms", 694_861_001),
    ],
)
def test_a_duration_is_the_sum_of_its_units(text: str, milliseconds: int) -> None:
    assert parse_duration(text).milliseconds == milliseconds


@pytest.mark.parametrize(
    "text",
    ["", "-1s", "+1s", ".5s", "1e3s", "1s1m", "1 s", "1S", "s", "10", "1s1s", "٣s", "1s\n", "1y", "1" * 13 + "s"],
)
def test_any_other_text_is_refused_in_one_line_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration such as 90s") as error:
        parse_duration(text)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "same"), [("60s", "1m"), ("01s", "1s"), ("1000ms", "1s"), ("1.5h", "90m"), ("0m", "0s")]
)
def test_equal_durations_have_equal_text(text: str, same: str) -> None:
    assert parse_duration(text).text == same
    assert parse_duration(text) == parse_duration(same)


def test_a_duration_is_at_most_a_century() -> None:
    assert parse_duration("999999999999w").seconds == LONGEST_SECONDS


@given(st.integers(0, LONGEST_SECONDS * 1000))
def test_the_text_of_a_duration_parses_to_the_same_duration(milliseconds: int) -> None:
    assert parse_duration(Duration(milliseconds).text) == Duration(milliseconds)
