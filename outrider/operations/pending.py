"""
Pending messages: look at what waits in the outbox, and have it tried now.

`retry_now` makes messages due for the scheduler, whoever's they were. It leaves alone what a scheduler holds, and what
waits behind the head of its key: order is never given up. A message that the relay is sending at this very moment can
be delivered twice, as after any hand-over. A message that was to be delivered later is delivered now.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import NamedTuple

from outrider.operations.selection import MessageSelection
from outrider.operations.stored_content import StoredContent
from outrider.storage.store import Store

BATCH_SIZE = 1000


@dataclass(frozen=True)
class PendingSelection(MessageSelection):
    """Which messages; conditions that are given must all hold. Their age counts since they were enqueued."""

    ordering_key: str | None = None
    owner: str | None = None
    """relay or scheduler."""
    due: bool = False
    """Only those that the scheduler may take now."""
    failed: bool = False
    """Only those that were refused before."""

    def parameters(self) -> dict[str, object]:
        return MessageSelection.parameters(self) | {
            "ordering_key": self.ordering_key,
            "owner": self.owner,
            "due": self.due,
            "failed": self.failed,
        }


class Pending(NamedTuple):
    """What operators see of one: not what the message says. In the order of `pending_columns`."""

    id: int
    event_id: str
    event_type: str
    ordering_key: str | None
    exchange: str
    routing_key: str
    attempts: int
    owner: str
    state: str
    """due; claimed by a scheduler; relay: in its hands; parked behind its key; waiting until next_attempt_at."""
    behind_head: bool
    """An earlier message of its key is pending."""
    next_attempt_at: datetime | None
    claimed_by: str | None
    last_error: str | None
    created_at: datetime


class Retried(NamedTuple):
    """What became of the selected messages."""

    due: int
    claimed: int
    """Left alone: a scheduler holds them."""
    behind: int
    """Left alone: an earlier message of their key comes first."""
    busy: int
    """Left alone: delivered, or in somebody's hands, at this very moment."""


def retry_now(
    store: Store,
    selection: PendingSelection,
    *,
    reset_attempts: bool = False,
    dry_run: bool = False,
    batch_size: int = BATCH_SIZE,
) -> Retried:
    """Have them tried now; `dry_run` only counts."""
    due = claimed = behind = busy = 0
    for batch in _walk(store, selection, batch_size):
        free = [each.id for each in batch if not each.behind_head and each.state != "claimed"]
        behind += sum(each.behind_head for each in batch)
        claimed += sum(each.state == "claimed" and not each.behind_head for each in batch)
        retried = len(free) if dry_run or not free else len(store.retry_now(free, reset_attempts=reset_attempts))
        due += retried
        busy += len(free) - retried
    return Retried(due, claimed, behind, busy)


def browse(store: Store, selection: PendingSelection, *, at_most: int = 50) -> list[Pending]:
    """The oldest of them, the oldest first."""
    return list(islice(oldest_first(store, selection, batch_size=min(at_most, BATCH_SIZE)), at_most))


def oldest_first(store: Store, selection: PendingSelection, *, batch_size: int = BATCH_SIZE) -> Iterator[Pending]:
    """All that are there now, the oldest first, a batch at a time."""
    for batch in _walk(store, selection, batch_size):
        yield from batch


def find(store: Store, selection: PendingSelection) -> tuple[Pending, StoredContent] | None:
    """The newest of them, whole."""
    row = store.pending_message(selection.parameters())
    if row is None:
        return None
    width = len(Pending._fields)
    return Pending._make(row[:width]), StoredContent._make(row[width:])


def _walk(store: Store, selection: PendingSelection, batch_size: int) -> Iterator[list[Pending]]:
    """Up to the newest message: an outbox that fills faster than it is walked has an end."""
    parameters = selection.parameters()
    after, up_to = 0, store.newest_id()
    while rows := store.pending_messages(parameters, after=after, up_to=up_to, batch_size=batch_size):
        yield [Pending._make(row) for row in rows]
        after = rows[-1][0]
