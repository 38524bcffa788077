"""
MessageSelection: the conditions by which an operator selects messages, common to pending messages and dead letters.

All given conditions must hold; without any, all messages are selected. Nothing here runs a query.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from outrider.storage.task_id import event_id_of_task

LARGEST_ID = 2**63 - 1


@dataclass(frozen=True)
class MessageSelection:
    ids: Sequence[int | str] | None = None
    """Row ids (numbers) and event_ids (text); a message with any of them is selected."""
    event_type: str | None = None
    """A glob: `*` stands for any characters, `?` for any one character."""
    older_than_seconds: float | None = None
    newer_than_seconds: float | None = None

    def parameters(self) -> dict[str, object]:
        """The query parameters of the conditions, including the fields that a subclass adds."""
        ids = self.ids
        return vars(self) | {
            "ids": None if ids is None else [each for each in ids if isinstance(each, int)],
            "event_ids": None if ids is None else [each for each in ids if isinstance(each, str)],
            "event_type": like_pattern(self.event_type),
            "older_than": interval_of(self.older_than_seconds),
            "newer_than": interval_of(self.newer_than_seconds),
        }

    def missing(self, found: int) -> int:
        """How many of the given ids were not found, where `found` messages were."""
        return max(0, len(set(self.ids or ())) - found)


def parse_message_id(text: str) -> int | str:
    """A row id; or an event_id in its canonical form, also for the id of a Celery task. ValueError if it is none."""
    if text.isascii() and text.isdecimal():
        if int(text[:20]) <= LARGEST_ID:
            return int(text)
    elif text.strip():
        return str(event_id_of_task(text))
    raise ValueError(f"{text!r} is neither a row's id nor an event_id nor a task id")


def like_pattern(glob: str | None) -> str | None:
    """The LIKE pattern of a glob."""
    if glob is None:
        return None
    escaped = glob.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return escaped.replace("*", "%").replace("?", "_")


def interval_of(seconds: float | None) -> timedelta | None:
    return None if seconds is None else timedelta(seconds=seconds)
