"""
Finding: the result of one check of the doctor. A check is a pure function of facts; its remedy says what to do.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from outrider.operations.diagnostic_queries import Unavailable

Level = Literal["ok", "unknown", "warning", "failed"]


class Finding(NamedTuple):
    check: str
    level: Level
    found: str
    remedy: str = ""

    @property
    def line(self) -> str:
        """`check: what was found; what to do`"""
        return f"{self.check}: {self.found}" + (f"; {self.remedy}" if self.remedy else "")


def ok(check: str, found: str) -> Finding:
    return Finding(check, "ok", found)


def warning(check: str, found: str, remedy: str) -> Finding:
    """It works now and may fail later."""
    return Finding(check, "warning", found, remedy)


def failed(check: str, found: str, remedy: str) -> Finding:
    """Until an operator acts, messages are not delivered, or not as configured."""
    return Finding(check, "failed", found, remedy)


def unknown(check: str, found: str, remedy: str) -> Finding:
    """It could not be examined."""
    return Finding(check, "unknown", found, remedy)


def not_checked(check: str, fact: Unavailable) -> Finding:
    return unknown(check, f"could not be checked: {fact.reason}", "connect as the observer role of sql/roles.sql")
