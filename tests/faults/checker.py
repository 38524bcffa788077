"""
The checker: what must hold of a history. Pure: values in, violations out; an empty list is the promise kept.

- every committed message was delivered at least once; only poison is in the dead letters, with a reason, and only rows
  of an unknown schema version are left in the table;
- nothing was delivered that was not committed, and nothing delayed before its time;
- the first deliveries of a key are in commit order;
- a message came twice only around a fault that can cause it: one that was injected before the second delivery, and
  healed at most REPEATS_AFTER_SECONDS before the first;
- memory is flat, and nothing else was remarked on.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tests.faults.history import Committed, Delivery, FaultRecord, History, Memory

REPEATS_AFTER_SECONDS = 15.0
"""A lease, a send timeout and a cooldown of the run's settings, and a busy machine."""

CLOCK_TOLERANCE_SECONDS = 0.05
"""Between the database's clock, which says when a delayed message is due, and ours."""

MAX_GROWTH_MIB = 64.0
MAX_PEAK_MIB = 400.0


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken promise, with the message it is about where it is about one."""

    promise: str
    detail: str
    event_id: str | None = None

    def __str__(self) -> str:
        return f"{self.promise}: {self.detail}"


def check(history: History) -> list[Violation]:
    """Every violation, in the order of the promises above."""
    return [
        *_fates(history),
        *_uncommitted(history),
        *_early(history),
        *_disorder(history),
        *_unexplained_repeats(history),
        *(violation for memory in history.memory for violation in _growth(memory)),
        *(Violation("all is quiet in the end", remark) for remark in history.remarks),
    ]


def repeats(history: History) -> list[tuple[Delivery, Delivery]]:
    """Each delivery of a message that had been delivered before, with the one before."""
    last: dict[str, Delivery] = {}
    found = []
    for delivery in history.deliveries:
        if (before := last.get(delivery.event_id)) is not None:
            found.append((before, delivery))
        last[delivery.event_id] = delivery
    return found


def _fates(history: History) -> Iterator[Violation]:
    delivered = {delivery.event_id for delivery in history.deliveries}
    dead = {letter.event_id: letter for letter in history.dead_letters}
    for message in history.committed:
        event_id, fate = message.event_id, message.fate
        is_delivered, letter, waits_for = event_id in delivered, dead.get(event_id), history.left.get(event_id)
        if not (is_delivered or letter or waits_for):
            yield Violation("nothing is lost", f"{_name(message)} is nowhere", event_id)
        if letter is not None and fate != "dead":
            why = f"{_name(message)} is dead: {letter.reason} ({letter.error})"
            yield Violation("only poison dies", why, event_id)
        if letter is not None and not letter.reason:
            yield Violation("a dead letter has a reason", f"{_name(message)} has none", event_id)
        if waits_for is not None and fate != "left":
            yield Violation("the table is empty in the end", f"{_name(message)} waits: {waits_for}", event_id)
        if is_delivered and fate != "delivered":
            yield Violation("poison is not delivered", f"{_name(message)} was", event_id)
        if fate == "left" and waits_for is None:
            yield Violation("rows of an unknown version are left alone", f"{_name(message)} is gone", event_id)


def _uncommitted(history: History) -> Iterator[Violation]:
    committed = {message.event_id for message in history.committed}
    for event_id in dict.fromkeys(delivery.event_id for delivery in history.deliveries):
        if event_id not in committed:
            what = "was rolled back" if event_id in history.rolled_back else "was never committed"
            yield Violation("nothing is delivered that was not committed", f"{event_id} {what}", event_id)


def _early(history: History) -> Iterator[Violation]:
    due = {message.event_id: message.not_before for message in history.committed if message.not_before is not None}
    for delivery in history.deliveries:
        early = due.get(delivery.event_id, 0.0) - delivery.at
        if early > CLOCK_TOLERANCE_SECONDS:
            what = f"{delivery.event_id} came {early:.3f} s too early"
            yield Violation("nothing delayed comes early", what, delivery.event_id)


def _disorder(history: History) -> Iterator[Violation]:
    messages = {message.event_id: message for message in history.committed if message.key is not None}
    seen: set[str] = set()
    newest: dict[str, Committed] = {}
    for delivery in history.deliveries:
        message = messages.get(delivery.event_id)
        if message is None or message.event_id in seen:
            continue
        seen.add(message.event_id)
        assert message.key is not None
        before = newest.get(message.key)
        if before is not None and (before.version or 0) > (message.version or 0):
            what = f"{_name(message)} first came at {delivery.at:.2f} s, after {_name(before)}"
            yield Violation("order is kept per key", what, message.event_id)
        else:
            newest[message.key] = message


def _unexplained_repeats(history: History) -> Iterator[Violation]:
    for first, second in repeats(history):
        if not explanations(history.faults, first, second):
            what = f"{second.event_id} came at {first.at:.2f} and at {second.at:.2f} s"
            yield Violation("repeats follow a fault that can cause them", what, second.event_id)


def explanations(faults: Sequence[FaultRecord], first: Delivery, second: Delivery) -> list[FaultRecord]:
    """The faults that can have made a message come again."""
    return [
        fault
        for fault in faults
        if fault.repeats and fault.began <= second.at and fault.ended + REPEATS_AFTER_SECONDS >= first.at
    ]


def _growth(memory: Memory) -> Iterator[Violation]:
    what = (
        f"{memory.process}: {memory.settled:.0f} MiB at first, {memory.peak:.0f} at most, {memory.final:.0f} in the end"
    )
    if memory.final - memory.settled > MAX_GROWTH_MIB or memory.peak > MAX_PEAK_MIB:
        yield Violation("memory is flat", f"{what}, within {memory.lived_seconds:.0f} s")


def _name(message: Committed) -> str:
    key = f" {message.key}/{message.version}" if message.key is not None else ""
    return f"{message.kind}{key} {message.event_id}"


def by_kind(history: History) -> dict[str, int]:
    """How many messages of each kind were committed."""
    counts: defaultdict[str, int] = defaultdict(int)
    for message in history.committed:
        counts[message.kind] += 1
    return dict(sorted(counts.items()))
