"""
Dead letters: replay them, discard them, look at them, group them by what went wrong.

A message is replayed by one statement that moves it from outbox_dead_letter back into the outbox: same event_id, same
content, no attempt spent, a new id (so it goes to the end of its ordering key). The relay then sends it like any new
message, or the scheduler where there is no relay. Replaying twice is harmless: what is back in the outbox is no dead
letter any more.

Work is done in batches, each a transaction of its own: what a lost connection interrupts can simply be done again. No
more than a batch is held in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import NamedTuple

from outrider.operations.rate_limit import RateLimit
from outrider.operations.selection import MessageSelection
from outrider.operations.stored_content import StoredContent
from outrider.storage.fingerprint import fingerprint, pattern
from outrider.storage.store import Store

BATCH_SIZE = 1000
MOST_GROUPS = 10_000
REASONS = ("max attempts", "expired", "rejected", "undecodable")

Progress = Callable[[int], None]
"""Is told how many messages a batch was."""


@dataclass(frozen=True)
class DeadLetterSelection(MessageSelection):
    """Which dead letters; conditions that are given must all hold. Their age counts since they were buried."""

    reason: str | None = None
    """One of REASONS."""
    fingerprint: str | None = None
    """Of one failure, as `groups` tells it."""

    def parameters(self) -> dict[str, object]:
        return MessageSelection.parameters(self) | {"reason": self.reason}


class Replayed(NamedTuple):
    replayed: int
    kept: int
    """Still dead letters, because a message with the same dedup_key is pending."""


class DeadLetterSummary(NamedTuple):
    """What operators see of one: not what the message says. In the order of `dead_columns`."""

    id: int
    event_id: str
    event_type: str
    ordering_key: str | None
    exchange: str
    routing_key: str
    attempts: int
    reason: str
    last_error: str | None
    created_at: datetime
    died_at: datetime

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.reason, self.event_type, self.last_error)


class Group(NamedTuple):
    """Dead letters of one fingerprint."""

    fingerprint: str
    messages: int
    reason: str
    event_type: str
    error: str
    """Without what differs from message to message."""
    first_died_at: datetime
    last_died_at: datetime
    example_id: int
    """The newest."""


def replay(
    store: Store,
    selection: DeadLetterSelection,
    *,
    batch_size: int = BATCH_SIZE,
    rate: float | None = None,
    progress: Progress | None = None,
) -> Replayed:
    """Put them back into the outbox, in their old order; `rate` is how many a second at most."""
    pace = RateLimit(rate)
    replayed = kept = 0
    for ids in chosen(store, selection, batch_size=pace.batch_size(batch_size)):
        found, moved = store.replay_dead(ids)
        replayed += moved
        kept += found - moved
        if progress:
            progress(len(ids))
        pace.wait(moved)
    return Replayed(replayed, kept)


def discard(
    store: Store, selection: DeadLetterSelection, *, batch_size: int = BATCH_SIZE, progress: Progress | None = None
) -> int:
    """Delete them for good; returns how many."""
    discarded = 0
    for ids in chosen(store, selection, batch_size=batch_size):
        discarded += store.discard_dead(ids)
        if progress:
            progress(len(ids))
    return discarded


def purge(store: Store, *, older_than_seconds: float, event_type: str | None = None) -> int:
    """Delete those that died longer ago, of all types or of one; returns how many."""
    return discard(store, DeadLetterSelection(event_type=event_type, older_than_seconds=older_than_seconds))


def count(store: Store, selection: DeadLetterSelection) -> int:
    return sum(len(ids) for ids in chosen(store, selection))


def chosen(store: Store, selection: DeadLetterSelection, *, batch_size: int = BATCH_SIZE) -> Iterator[list[int]]:
    """The ids of the selected, ascending, in batches."""
    for outlines in _walk(store, selection, batch_size):
        ids = [
            row_id
            for row_id, reason, event_type, error, _ in outlines
            if selection.fingerprint is None or selection.fingerprint == fingerprint(reason, event_type, error)
        ]
        if ids:
            yield ids


def browse(store: Store, selection: DeadLetterSelection, *, at_most: int = 50) -> list[DeadLetterSummary]:
    """The newest of them, the newest first."""
    return list(islice(newest_first(store, selection, batch_size=min(at_most, BATCH_SIZE)), at_most))


def newest_first(
    store: Store, selection: DeadLetterSelection, *, batch_size: int = BATCH_SIZE
) -> Iterator[DeadLetterSummary]:
    """All of them, the newest first, a page of the table at a time."""
    parameters = selection.parameters()
    before: tuple[datetime, int] | None = None
    while rows := store.dead_letters(parameters, before=before, batch_size=batch_size):
        for letter in map(DeadLetterSummary._make, rows):
            if selection.fingerprint is None or selection.fingerprint == letter.fingerprint:
                yield letter
        before = letter.died_at, letter.id


def find(store: Store, selection: DeadLetterSelection) -> tuple[DeadLetterSummary, StoredContent] | None:
    """The newest of them, whole."""
    row = store.dead_letter(selection.parameters())
    if row is None:
        return None
    width = len(DeadLetterSummary._fields)
    return DeadLetterSummary._make(row[:width]), StoredContent._make(row[width:])


def groups(store: Store, selection: DeadLetterSelection) -> list[Group]:
    """What went wrong, the most frequent first. Beyond MOST_GROUPS of them, the rest is one group without a name."""
    found: dict[str, Group] = {}
    for outlines in _walk(store, selection, BATCH_SIZE):
        for row_id, reason, event_type, error, died_at in outlines:
            name = fingerprint(reason, event_type, error)
            if selection.fingerprint not in (None, name):
                continue
            if name not in found and len(found) >= MOST_GROUPS:
                name = reason = event_type = ""
                error = None
            group = found.get(name)
            if group is None:
                found[name] = Group(name, 1, reason, event_type, pattern(error), died_at, died_at, row_id)
            else:
                found[name] = group._replace(
                    messages=group.messages + 1,
                    first_died_at=min(group.first_died_at, died_at),
                    last_died_at=max(group.last_died_at, died_at),
                    example_id=row_id,
                )
    return sorted(found.values(), key=lambda group: (-group.messages, group.fingerprint))


def _walk(
    store: Store, selection: DeadLetterSelection, batch_size: int
) -> Iterator[list[tuple[int, str, str, str | None, datetime]]]:
    """Outlines of the selected, by their ids, but for the fingerprint: that is the caller's to compare."""
    parameters = selection.parameters()
    after, up_to = 0, store.newest_dead_letter()
    while rows := store.dead_outlines(parameters, after=after, up_to=up_to, batch_size=batch_size):
        yield rows
        after = rows[-1][0]
