"""
What happened in a run, as plain values: the input of the checker, and nothing else. No I/O.

Times are seconds since the run began, on the one monotonic clock that all processes of a machine share.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

Fate = Literal["delivered", "dead", "left"]


@dataclass(frozen=True, slots=True)
class Committed:
    """A message in the ledger table: its transaction has committed."""

    event_id: str
    kind: str
    at: float
    """When it was written, a little before the commit."""
    key: str | None = None
    version: int | None = None
    """Its place among the messages of its key: rows of a key are committed in this order."""
    not_before: float | None = None
    """When a delayed message may be delivered."""

    @property
    def fate(self) -> Fate:
        """What must become of it."""
        if self.kind == "future":
            return "left"  # of a schema version that the services do not know
        return "dead" if self.kind.startswith("poison.") else "delivered"


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message as a consumer received it."""

    event_id: str
    at: float
    redelivered: bool = False
    """The broker says that it may have delivered it before: not a second publish."""


@dataclass(frozen=True, slots=True)
class FaultRecord:
    """A fault, from just before it was injected to just after it was healed."""

    name: str
    target: str
    began: float
    ended: float
    repeats: bool
    """Whether messages may come twice because of it."""

    def __str__(self) -> str:
        return f"{self.began:7.2f} to {self.ended:6.2f} s  {self.name}: {self.target}"


@dataclass(frozen=True, slots=True)
class DeadLetter:
    event_id: str
    reason: str
    error: str | None


@dataclass(frozen=True, slots=True)
class Memory:
    """The resident memory of one process that lived for long enough to judge it, in MiB."""

    process: str
    lived_seconds: float
    settled: float
    """After its start."""
    final: float
    peak: float


@dataclass(frozen=True, slots=True)
class History:
    """Everything that is known at the end of a run."""

    committed: Sequence[Committed]
    deliveries: Sequence[Delivery]
    """In the order of arrival; those of one key are of one queue."""
    faults: Sequence[FaultRecord] = ()
    dead_letters: Sequence[DeadLetter] = ()
    left: Mapping[str, str] = field(default_factory=dict)
    """Rows that are still in the outbox, by event id, with what they wait for."""
    rolled_back: frozenset[str] = frozenset()
    memory: Sequence[Memory] = ()
    remarks: Sequence[str] = ()
    """What must not be and is not about a message: an idle transaction, a slot that lags, a traceback, an exit code."""
