"""
The checker: what must hold of a history. Pure: values in, violations out; an empty list means that everything holds.

- every committed message was delivered at least once; only poison is in the dead letters, with a reason, and only rows
  of an unknown schema version remain in the table;
- nothing was delivered that was not committed, and no delayed message before its time;
- the first deliveries of a key are in commit order;
- a message was delivered twice only near a fault that can cause it: injected before the second delivery, and healed at
  most DUPLICATES_AFTER_SECONDS before the first;
- memory does not grow, and no other problem was recorded.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tests.faults.history import Committed, Delivery, FaultRecord, History, Memory

DUPLICATES_AFTER_SECONDS = 15.0
"""A lease, a send timeout and a cooldown of the run's settings, with a margin for a busy machine."""

CLOCK_TOLERANCE_SECONDS = 0.05
"""Difference between the database's clock, which decides when a delayed message is due, and ours."""

MAX_GROWTH_MIB = 64.0
MAX_PEAK_MIB = 400.0


@dataclass(frozen=True, slots=True)
class Violation:
    """A rule that does not hold, and the message that it concerns, if it concerns one."""

    rule: str
    detail: str
    event_id: str | None = None

    def __str__(self) -> str:
        return f"{self.rule}: {self.detail}"


def check(history: History) -> list[Violation]:
    """Every violation, in the order of the rules above."""
    return [
        *_wrong_ends(history),
        *_uncommitted(history),
        *_early(history),
        *_wrong_order(history),
        *_unexplained_duplicates(history),
        *(violation for memory in history.memory for violation in _growth(memory)),
        *(Violation("the run ends without other problems", problem) for problem in history.problems),
    ]


def duplicates(history: History) -> list[tuple[Delivery, Delivery]]:
    """Each repeated delivery of a message, with the previous one."""
    last: dict[str, Delivery] = {}
    found = []
    for delivery in history.deliveries:
        if (before := last.get(delivery.event_id)) is not None:
            found.append((before, delivery))
        last[delivery.event_id] = delivery
    return found


def _wrong_ends(history: History) -> Iterator[Violation]:
    delivered = {delivery.event_id for delivery in history.deliveries}
    dead = {letter.event_id: letter for letter in history.dead_letters}
    for message in history.committed:
        event_id, expected = message.event_id, message.expected_end
        is_delivered, letter, remaining_row = event_id in delivered, dead.get(event_id), history.left.get(event_id)
        if not (is_delivered or letter or remaining_row):
            yield Violation("nothing is lost", f"{_name(message)} is neither delivered, dead letter nor row", event_id)
        if letter is not None and expected != "buried":
            why = f"{_name(message)} is a dead letter: {letter.reason} ({letter.error})"
            yield Violation("only poison is buried", why, event_id)
        if letter is not None and not letter.reason:
            yield Violation("a dead letter has a reason", f"{_name(message)} has none", event_id)
        if remaining_row is not None and expected != "left":
            yield Violation("the table is empty at the end", f"{_name(message)} remains: {remaining_row}", event_id)
        if is_delivered and expected != "delivered":
            yield Violation("poison is not delivered", f"{_name(message)} was delivered", event_id)
        if expected == "left" and remaining_row is None:
            yield Violation("rows of an unknown version stay in the table", f"{_name(message)} is missing", event_id)


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
            what = f"{delivery.event_id} was delivered {early:.3f} s too early"
            yield Violation("a delayed message is not delivered early", what, delivery.event_id)


def _wrong_order(history: History) -> Iterator[Violation]:
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
            what = f"{_name(message)} was first delivered at {delivery.at:.2f} s, after {_name(before)}"
            yield Violation("order is kept per key", what, message.event_id)
        else:
            newest[message.key] = message


def _unexplained_duplicates(history: History) -> Iterator[Violation]:
    for first, second in duplicates(history):
        if not explanations(history.faults, first, second):
            what = f"{second.event_id} was delivered at {first.at:.2f} and at {second.at:.2f} s"
            yield Violation("duplicates follow a fault that can cause them", what, second.event_id)


def explanations(faults: Sequence[FaultRecord], first: Delivery, second: Delivery) -> list[FaultRecord]:
    """The faults that can have caused a repeated delivery."""
    return [
        fault
        for fault in faults
        if fault.causes_duplicates and fault.began <= second.at and fault.ended + DUPLICATES_AFTER_SECONDS >= first.at
    ]


def _growth(memory: Memory) -> Iterator[Violation]:
    what = (
        f"{memory.process}: {memory.early:.0f} MiB at first, {memory.peak:.0f} at most, {memory.final:.0f} at the end"
    )
    if memory.final - memory.early > MAX_GROWTH_MIB or memory.peak > MAX_PEAK_MIB:
        yield Violation("memory does not grow", f"{what}, within {memory.ran_seconds:.0f} s")


def _name(message: Committed) -> str:
    key = f" {message.key}/{message.version}" if message.key is not None else ""
    return f"{message.kind}{key} {message.event_id}"


def by_kind(history: History) -> dict[str, int]:
    """Number of committed messages by kind."""
    counts: defaultdict[str, int] = defaultdict(int)
    for message in history.committed:
        counts[message.kind] += 1
    return dict(sorted(counts.items()))
