"""
Selection: which messages an operator means. What dead letters and messages that wait have in common.

Conditions that are given must all hold; without any, all messages are meant. Nothing here runs a query.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta


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


def like(glob: str | None) -> str | None:
    """The LIKE pattern of a glob."""
    if glob is None:
        return None
    escaped = glob.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return escaped.replace("*", "%").replace("?", "_")


def _interval(seconds: float | None) -> timedelta | None:
    return None if seconds is None else timedelta(seconds=seconds)
