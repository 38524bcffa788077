"""
Durations as text: `500ms`, `90s`, `1m30s`, `1.5h`, `7d`, `2w`. Pure.

The units are w, d, h, m, s and ms: from the largest to the smallest, each at most once. Equal durations have equal
`text`, however they were written (`60s` and `1m` are both `1m`), so that a delay queue can be named by it.
"""

from __future__ import annotations

import re
from typing import NamedTuple

# A century: longer than any useful setting, and within the range of PostgreSQL's intervals and Python's.
LONGEST_SECONDS = 36_525 * 86_400

_MILLISECONDS = {"w": 604_800_000, "d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000, "ms": 1}
_PATTERN = re.compile("".join(rf"(?:(\d{{1,12}}(?:\.\d{{1,6}})?){unit})?" for unit in _MILLISECONDS), re.ASCII)


class Duration(NamedTuple):
    milliseconds: int

    @property
    def seconds(self) -> float:
        return self.milliseconds / 1000

    @property
    def text(self) -> str:
        """Minutes, seconds and milliseconds: `90m`, `1m30s`, `500ms`."""
        minutes, rest = divmod(self.milliseconds, 60_000)
        seconds, milliseconds = divmod(rest, 1000)
        parts = ((minutes, "m"), (seconds, "s"), (milliseconds, "ms"))
        return "".join(f"{number}{unit}" for number, unit in parts if number) or "0s"


def in_seconds(value: object) -> object:
    """Text with a unit as seconds. Any other value unchanged: a number, or a mistake that its reader describes."""
    return parse_duration(value).seconds if isinstance(value, str) and value[-1:].isalpha() else value


def seconds(value: float | str) -> float:
    """A number of seconds, or the seconds of text such as `90s`."""
    return parse_duration(value).seconds if isinstance(value, str) else value


def parse_duration(text: str) -> Duration:
    """A duration longer than a century counts as a century. ValueError in one line for text that is not a duration."""
    match = _PATTERN.fullmatch(text)
    if match is None or not text:
        raise ValueError(f"{text[:40]!r} is not a duration such as 90s, 1m30s, 2h or 7d (units: w, d, h, m, s, ms)")
    numbers = (float(number or 0) for number in match.groups())
    milliseconds = sum(number * unit for number, unit in zip(numbers, _MILLISECONDS.values(), strict=True))
    return Duration(round(min(milliseconds, LONGEST_SECONDS * 1000)))
