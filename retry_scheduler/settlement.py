"""
BatchSettlement: the results of one claim's messages, and writing them to the table.

Every statement names the claim, so writing a result twice, or after the lease has ended, does no harm. `write` removes
what has been written: after a lost connection it continues where it stopped. What the broker confirmed is written
first, and a row that cannot be written holds up no other (see outrider.runtime.settling).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from outrider.failures import Failure
from outrider.runtime.settling import Settling
from outrider.storage.decision import Burial, Decision, Retry
from outrider.storage.message import Message
from outrider.storage.store import Store


class FailedMessage(NamedTuple):
    """A message that is retried or buried."""

    message: Message
    failure: Failure | None
    """None: it was not sent, because it has expired."""
    decision: Decision


@dataclass(slots=True)
class BatchSettlement:
    claim: str
    confirmed: list[Message] = field(default_factory=list)
    failed: list[FailedMessage] = field(default_factory=list)
    deferred: list[Message] = field(default_factory=list)
    """A broker outage: not known to be delivered."""
    released: list[Message] = field(default_factory=list)
    """Not sent."""
    publish_seconds: list[float] = field(default_factory=list)
    """From send to confirm, of each confirmed message."""

    def __bool__(self) -> bool:
        return bool(self.confirmed or self.failed or self.deferred or self.released)

    def write(self, store: Store, *, archive: bool, cooldown_seconds: float) -> int:
        """Write the results; returns how many rows no longer had this claim."""
        settling = Settling(store, self.claim)
        lost = 0
        if self.confirmed:
            lost += len(self.confirmed) - len(settling.settle(_ids(self.confirmed), archive=archive))
            self.confirmed = []
        # Failures before the rest: when rows of the same key fall due because they are released, its head backs off.
        # A settled row may unpark rows behind that head: the next claim parks them again, because the head is leased.
        burials = [each.decision for each in self.failed if isinstance(each.decision, Burial)]
        retries = [each.decision for each in self.failed if isinstance(each.decision, Retry)]
        lost += len(burials) - len(settling.bury(burials))
        lost += len(retries) - len(settling.fail(retries))
        self.failed = []
        lost += len(self.released) - len(
            settling.write(lambda ids: store.release(ids, claim=self.claim), _ids(self.released), int)
        )
        self.released = []
        lost += len(self.deferred) - len(
            settling.write(
                lambda ids: store.defer(ids, claim=self.claim, cooldown_seconds=cooldown_seconds),
                _ids(self.deferred),
                int,
            )
        )
        self.deferred = []
        return lost


def _ids(messages: list[Message]) -> list[int]:
    return [message.id for message in messages]
