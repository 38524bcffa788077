"""
Positions in the write-ahead log.

An Lsn is an int that prints and parses as PostgreSQL does. Arithmetic gives plain ints: the distance between two
positions is a number of bytes.
"""

from __future__ import annotations

import re
from typing import Self

_TEXT = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")


class Lsn(int):
    """A position in the write-ahead log; 0 means no position."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the form that PostgreSQL prints, such as "16/B374D848". Raises ValueError for anything else."""
        match = _TEXT.fullmatch(text)
        if match is None:
            raise ValueError(f"not a WAL position: {text!r} (expected a form like '16/B374D848')")
        return cls(int(match[1], 16) << 32 | int(match[2], 16))

    def __str__(self) -> str:
        return f"{int(self) >> 32:X}/{int(self) & 0xFFFFFFFF:X}"

    def __repr__(self) -> str:
        return f"Lsn({str(self)!r})"
