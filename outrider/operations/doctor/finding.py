"""
Finding: what one check of the doctor came to. A check is a pure function of facts, and says what to do where it can.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from outrider.operations.diagnostics import Unavailable

Level = Literal["ok", "warning", "failed"]


class Finding(NamedTuple):
    check: str
    level: Level
    found: str
    remedy: str = ""

    @property
    def line(self) -> str:
        """For people: `check: what was found; what to do`."""
        return f"{self.check}: {self.found}" + (f"; {self.remedy}" if self.remedy else "")


def ok(check: str, found: str) -> Finding:
    return Finding(check, "ok", found)


def warning(check: str, found: str, remedy: str) -> Finding:
    """It works now, and may not later; or it could not be seen."""
    return Finding(check, "warning", found, remedy)


def failed(check: str, found: str, remedy: str) -> Finding:
    """Messages are not delivered, or not in the way that was asked for, until somebody acts."""
    return Finding(check, "failed", found, remedy)


def cannot_see(check: str, unseen: Unavailable, remedy: str = "ask as the observer role of sql/roles.sql") -> Finding:
    return warning(check, f"cannot see it: {unseen.reason}", remedy)
