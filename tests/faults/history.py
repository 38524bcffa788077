"""
The record of a run, as plain values: the input of the checker. No I/O.

Times are seconds since the start of the run, on the monotonic clock that all processes of a machine share.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

ExpectedEnd = Literal["delivered", "buried", "left"]


@dataclass(frozen=True, slots=True)
class Committed:
    """A row of the table committed_message: the transaction of this message has committed."""

    event_id: str
    kind: str
    at: float
    """Time of the INSERT, shortly before the commit."""
    key: str | None = None
    version: int | None = None
    """Position among the messages of its key; they are committed in this order."""
    not_before: float | None = None
    """Earliest delivery of a delayed message."""

    @property
    def expected_end(self) -> ExpectedEnd:
        if self.kind == "future":
            return "left"  # its schema version is newer than the services support
        return "buried" if self.kind.startswith("poison.") else "delivered"


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message as a consumer received it."""

    event_id: str
    at: float
    redelivered: bool = False
    """The broker's redelivered flag: the same publish, delivered again."""


@dataclass(frozen=True, slots=True)
class FaultRecord:
    """A fault, from just before its injection to just after its healing."""

    name: str
    target: str
    began: float
    ended: float
    causes_duplicates: bool
    """Whether messages may be delivered twice because of it."""

    def __str__(self) -> str:
        return f"{self.began:7.2f} to {self.ended:6.2f} s  {self.name}: {self.target}"


@dataclass(frozen=True, slots=True)
class DeadLetterRecord:
    event_id: str
    reason: str
    error: str | None


@dataclass(frozen=True, slots=True)
class Memory:
    """The resident memory of one process that ran long enough for the check, in MiB."""

    process: str
    ran_seconds: float
    early: float
    """Median shortly after the start."""
    final: float
    peak: float


@dataclass(frozen=True, slots=True)
class History:
    """The complete record at the end of a run."""

    committed: Sequence[Committed]
    deliveries: Sequence[Delivery]
    """In the order of arrival; the messages of one key go to one queue."""
    faults: Sequence[FaultRecord] = ()
    dead_letters: Sequence[DeadLetterRecord] = ()
    left: Mapping[str, str] = field(default_factory=dict)
    """Rows that are still in the outbox: event id and a description of the row."""
    rolled_back: frozenset[str] = frozenset()
    memory: Sequence[Memory] = ()
    problems: Sequence[str] = ()
    """Problems that concern no single message: an idle transaction, a slot that lags, a traceback, an exit code."""
