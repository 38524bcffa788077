"""
Settlement: what became of the rows of one claim, and what the store is told about it.

Every statement names the claim, so that telling the store twice, or too late, does no harm. `apply` forgets what the
store has been told: after a lost connection it goes on where it was.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from outrider.failures import Failure
from outrider.storage.message import Message
from outrider.storage.store import Burial, Refusal, Store


class Refused(NamedTuple):
    """A message that fails or is given up, and why."""

    message: Message
    failure: Failure | None
    """None: it was not sent (it has expired)."""
    decision: Refusal | Burial


@dataclass(slots=True)
class Settlement:
    claim: str
    confirmed: list[Message] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)
    deferred: list[Message] = field(default_factory=list)
    """Not delivered, or perhaps: the broker is away."""
    released: list[Message] = field(default_factory=list)
    """Not sent."""
    publish_seconds: list[float] = field(default_factory=list)
    """From send to confirm, of each confirmed message."""

    def __bool__(self) -> bool:
        return bool(self.confirmed or self.refused or self.deferred or self.released)

    def apply(self, store: Store, *, archive: bool, cooldown_seconds: float) -> int:
        """Tell the store; returns how many rows were no longer ours."""
        lost = 0
        # Failures first: followers that settling a key's head wakes, or that are released, then find it backing off.
        burials = [each.decision for each in self.refused if isinstance(each.decision, Burial)]
        refusals = [each.decision for each in self.refused if isinstance(each.decision, Refusal)]
        if burials:
            lost += len(burials) - len(store.bury(burials, claim=self.claim))
        if refusals:
            lost += len(refusals) - len(store.fail(refusals, claim=self.claim))
        self.refused = []
        if self.confirmed:
            lost += len(self.confirmed) - len(store.settle(_ids(self.confirmed), claim=self.claim, archive=archive))
            self.confirmed = []
        if self.released:
            lost += len(self.released) - len(store.release(_ids(self.released), claim=self.claim))
            self.released = []
        if self.deferred:
            kept = store.defer(_ids(self.deferred), claim=self.claim, cooldown_seconds=cooldown_seconds)
            lost += len(self.deferred) - len(kept)
            self.deferred = []
        return lost


def _ids(messages: list[Message]) -> list[int]:
    return [message.id for message in messages]
