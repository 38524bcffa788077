"""
Dead letters: list them, group them by failure, replay them, discard them.

A replay moves dead letters back into the outbox in one statement per batch: same event_id, same content, no attempts
spent, and a new id, so that the message goes to the end of its ordering key. The relay then publishes it like any new
message (or the scheduler, where there is no relay). A second replay finds no dead letter and does nothing.

Work is done in batches, each in its own transaction: after a lost connection the same call can be repeated. No more
than one batch is held in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import NamedTuple

from outrider.errors import DatabaseError
from outrider.operations.message_selection import MessageSelection, interval_of
from outrider.operations.rate_limit import RateLimit
from outrider.operations.stored_content import StoredContent, split_content
from outrider.storage.fingerprint import fingerprint, pattern
from outrider.storage.store import Store

BATCH_SIZE = 1000
MOST_GROUPS = 10_000
MOST_SKIPPED = 20
REFUSED_ROW = ("22", "23")
"""Classes of SQLSTATE that are the fault of one row: data exception, integrity constraint violation."""

Progress = Callable[[int], None]
"""Called after each batch with the number of its messages."""


@dataclass(frozen=True)
class DeadLetterSelection(MessageSelection):
    """Which dead letters; all given conditions must hold. Their age counts from the moment they were buried."""

    reason: str | None = None
    """One of DEAD_LETTER_REASONS."""
    fingerprint: str | None = None
    """Of one kind of failure, as in FailureGroup. SQL does not know it: Python compares."""
    created_older_than_seconds: float | None = None
    """The age since the message was enqueued."""

    def parameters(self) -> dict[str, object]:
        return super().parameters() | {"created_older_than": interval_of(self.created_older_than_seconds)}


SKIPPED = {
    "pending": "a message with the same dedup_key is pending",
    "repeated": "a newer dead letter has the same dedup_key",
}
"""Why a replay leaves a dead letter where it is, by the name that the query `replay_dead` gives it."""


class SkippedDeadLetter(NamedTuple):
    id: int
    dedup_key: str | None
    why: str


class ReplayResult(NamedTuple):
    replayed: int
    kept: int
    """Still dead letters."""
    skipped: tuple[SkippedDeadLetter, ...] = ()
    """The first MOST_SKIPPED of those that were kept."""

    @property
    def kept_text(self) -> str:
        """How many were kept and why, on one line; empty if none."""
        why = ", ".join(sorted({each.why for each in self.skipped}))
        return f"kept {self.kept} ({why})" if self.kept else ""


class DeadLetterSummary(NamedTuple):
    """A dead letter without its content. The fields are in the order of the SQL fragment `dead_columns`."""

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


class FailureGroup(NamedTuple):
    """Dead letters with the same fingerprint."""

    fingerprint: str
    messages: int
    reason: str
    event_type: str
    error: str
    """Without the parts that differ between messages: numbers, ids, quoted values."""
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
) -> ReplayResult:
    """
    Move dead letters back into the outbox in their old order, at most `rate` messages a second.

    One that cannot be moved stays a dead letter, and does not keep the others back.
    """
    rate_limit = RateLimit(rate)
    result = ReplayResult(0, 0)
    for ids in selected_ids(store, selection, batch_size=rate_limit.batch_size(batch_size)):
        moved, skipped = _replay_batch(store, ids)
        first = (*result.skipped, *skipped)[:MOST_SKIPPED]
        result = ReplayResult(result.replayed + moved, result.kept + len(skipped), first)
        if progress:
            progress(len(ids))
        rate_limit.wait(moved)
    return result


def _replay_batch(store: Store, ids: list[int]) -> tuple[int, list[SkippedDeadLetter]]:
    """How many were moved, and those that were not. A row that PostgreSQL refuses is left out, by halving the batch."""
    try:
        rows = store.replay_dead(ids)
    except DatabaseError as error:
        if not (error.sqlstate or "").startswith(REFUSED_ROW):
            raise
        if len(ids) == 1:
            return 0, [SkippedDeadLetter(ids[0], None, str(error))]
        halves = [_replay_batch(store, part) for part in (ids[: len(ids) // 2], ids[len(ids) // 2 :])]
        return sum(moved for moved, _ in halves), [each for _, skipped in halves for each in skipped]
    skipped = [SkippedDeadLetter(row_id, key, SKIPPED[why]) for row_id, key, why in rows if why is not None]
    return len(rows) - len(skipped), skipped


def discard(
    store: Store, selection: DeadLetterSelection, *, batch_size: int = BATCH_SIZE, progress: Progress | None = None
) -> int:
    """Delete dead letters for good; returns how many."""
    discarded = 0
    for ids in selected_ids(store, selection, batch_size=batch_size):
        discarded += store.discard_dead(ids)
        if progress:
            progress(len(ids))
    return discarded


def count(store: Store, selection: DeadLetterSelection) -> int:
    return sum(len(ids) for ids in selected_ids(store, selection))


def selected_ids(store: Store, selection: DeadLetterSelection, *, batch_size: int = BATCH_SIZE) -> Iterator[list[int]]:
    """The row ids of the selected dead letters, ascending, in batches."""
    for outlines in _outlines(store, selection, batch_size):
        ids = [
            row_id
            for row_id, reason, event_type, error, _ in outlines
            if selection.fingerprint is None or selection.fingerprint == fingerprint(reason, event_type, error)
        ]
        if ids:
            yield ids


def newest_first(
    store: Store, selection: DeadLetterSelection, *, limit: int = 50, batch_size: int = BATCH_SIZE
) -> Iterator[DeadLetterSummary]:
    """The newest `limit` dead letters, read in pages."""
    return islice(_newest_first(store, selection, min(limit, batch_size)), limit)


def _newest_first(store: Store, selection: DeadLetterSelection, batch_size: int) -> Iterator[DeadLetterSummary]:
    parameters = selection.parameters()
    before: tuple[datetime, int] | None = None
    while rows := store.dead_letters(parameters, before=before, batch_size=batch_size):
        for letter in map(DeadLetterSummary._make, rows):
            if selection.fingerprint is None or selection.fingerprint == letter.fingerprint:
                yield letter
        before = letter.died_at, letter.id


def find_with_content(store: Store, selection: DeadLetterSelection) -> tuple[DeadLetterSummary, StoredContent] | None:
    """The newest of the selected dead letters, with its content; None if there is none."""
    return split_content(DeadLetterSummary, store.dead_letter(selection.parameters()))


def group_by_failure(store: Store, selection: DeadLetterSelection) -> list[FailureGroup]:
    """The kinds of failure, the most frequent first. Beyond MOST_GROUPS, the rest is one group with an empty name."""
    groups: dict[str, FailureGroup] = {}
    for outlines in _outlines(store, selection, BATCH_SIZE):
        for row_id, reason, event_type, error, died_at in outlines:
            name = fingerprint(reason, event_type, error)
            if selection.fingerprint not in (None, name):
                continue
            if name not in groups and len(groups) >= MOST_GROUPS:
                name = reason = event_type = ""
                error = None
            group = groups.get(name)
            if group is None:
                groups[name] = FailureGroup(name, 1, reason, event_type, pattern(error), died_at, died_at, row_id)
            else:
                groups[name] = group._replace(
                    messages=group.messages + 1,
                    first_died_at=min(group.first_died_at, died_at),
                    last_died_at=max(group.last_died_at, died_at),
                    example_id=row_id,
                )
    return sorted(groups.values(), key=lambda group: (-group.messages, group.fingerprint))


def _outlines(
    store: Store, selection: DeadLetterSelection, batch_size: int
) -> Iterator[list[tuple[int, str, str, str | None, datetime]]]:
    """
    Batches of (id, reason, event_type, last_error, died_at), ascending by id, up to the newest one at the start.

    SQL applies every condition except the fingerprint, which the caller compares.
    """
    parameters = selection.parameters()
    after, up_to = 0, store.newest_dead_letter()
    while rows := store.dead_outlines(parameters, after=after, up_to=up_to, batch_size=batch_size):
        yield rows
        after = rows[-1][0]
