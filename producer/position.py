"""
Position: a place in the log of event streams.

Positions of one log can be compared, and stored as text: `str(position)`, `Position.parse(text)`. What is in one is of
no concern to an application: events of different streams are in the order of their positions, and that is all it says.
docs/event-sourcing.md explains how PostgreSQL makes this order safe to read.
"""

from __future__ import annotations

from typing import NamedTuple


class Position(NamedTuple):
    epoch: int
    transaction_id: int
    number: int

    def __str__(self) -> str:
        return f"{self.epoch}-{self.transaction_id}-{self.number}"

    @classmethod
    def parse(cls, text: str) -> Position:
        """The position of such a text. ValueError for any other."""
        parts = text.split("-")
        if len(parts) != 3 or not all(part.isascii() and part.isdecimal() and len(part) < 20 for part in parts):
            raise ValueError(f"{text!r} is not a position of the event log")
        return cls(*map(int, parts))


START = Position(0, 0, 0)
"""Before the first event."""
