"""
Selection: which messages an operator means. What dead letters and messages that wait have in common.

Conditions that are given must all hold; without any, all messages are meant. Nothing here runs a query. The words in
which operators say it, durations and ids, are read here too; ValueError in one line for those that are wrong.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

LARGEST_ID = 2**63 - 1
LONGEST_SECONDS = 100 * 366 * 86_400.0

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
_DURATION = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)([smhdw])", re.ASCII)


@dataclass(frozen=True)
class MessageSelection:
    ids: Sequence[int] | None = None
    """Rows by their id; with event_ids, those of either list."""
    event_ids: Sequence[str] | None = None
    event_type: str | None = None
    """A glob: `*` and `?` stand for any characters, and any one."""
    older_than_seconds: float | None = None
    newer_than_seconds: float | None = None

    def parameters(self) -> dict[str, object]:
        """Of the conditions in sql/queries.sql."""
        return {
            "ids": None if self.ids is None else list(self.ids),
            "event_ids": None if self.event_ids is None else list(self.event_ids),
            "event_type": like(self.event_type),
            "older_than": _interval(self.older_than_seconds),
            "newer_than": _interval(self.newer_than_seconds),
        }


def duration(text: str) -> float:
    """Seconds; of 90s, 15m, 2h, 7d."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a duration such as 90s, 15m, 2h or 7d")
    return min(float(match[1]) * _UNITS[match[2]], LONGEST_SECONDS)


def row_or_event_id(text: str) -> int | str:
    """A row's id, or the event_id of a message."""
    if text.isascii() and text.isdecimal() and int(text[:20]) <= LARGEST_ID:
        return int(text)
    try:
        return str(UUID(text))
    except ValueError:
        raise ValueError(f"{text!r} is neither a row's id nor an event_id") from None


def like(glob: str | None) -> str | None:
    """The LIKE pattern of a glob."""
    if glob is None:
        return None
    escaped = glob.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return escaped.replace("*", "%").replace("?", "_")


def _interval(seconds: float | None) -> timedelta | None:
    return None if seconds is None else timedelta(seconds=seconds)
