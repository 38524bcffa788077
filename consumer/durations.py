"""
Durations of retry delays, as text: `500ms`, `10s`, `1m30s`. Pure.

A duration has one spelling, because delay queues are named by it and shared by everyone who spells it the same:
minutes, seconds and milliseconds, in this order, each at most once, without leading zeros, and no more of a unit than
the next one takes over (`1m`, never `60s`). There are no hours: `90m`.
"""

from __future__ import annotations

import re
from typing import NamedTuple

# The longest time to live that RabbitMQ takes, in milliseconds.
LONGEST_MILLISECONDS = 2**32 - 1

_SPELLING = re.compile(r"(?:(?P<m>[1-9]\d{0,5})m)?(?:(?P<s>[1-9]\d?)s)?(?:(?P<ms>[1-9]\d{0,2})ms)?")
_EXPECTED = (
    "a duration is minutes, seconds and milliseconds such as 500ms, 10s, 1m30s or 90m: no leading zeros, "
    "fewer than 60 seconds and 1000 milliseconds, and no other unit"
)


class Duration(NamedTuple):
    """A positive time, and its one spelling."""

    text: str
    milliseconds: int

    @property
    def seconds(self) -> float:
        return self.milliseconds / 1000


def parse_duration(text: object) -> Duration:
    """The duration that a text spells; TypeError or ValueError with what is expected."""
    if not isinstance(text, str):
        raise TypeError(f"{_EXPECTED}; got {type(text).__qualname__}")
    match = _SPELLING.fullmatch(text)
    if match is None or not text or int(match["s"] or 0) >= 60:
        raise ValueError(f"{text[:40]!r} is no duration: {_EXPECTED}")
    milliseconds = int(match["m"] or 0) * 60_000 + int(match["s"] or 0) * 1000 + int(match["ms"] or 0)
    if milliseconds > LONGEST_MILLISECONDS:
        raise ValueError(f"{text!r} is longer than the broker can keep a message: at most {LONGEST_MILLISECONDS} ms")
    return Duration(text, milliseconds)
