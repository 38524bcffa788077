"""
Pending messages: list the rows of the outbox, and make them due now.

`retry_now` makes messages due for the scheduler, whether the relay or the scheduler owns them. It skips messages that a
scheduler has claimed, and messages behind the head of their ordering key, so that order is kept. A message that the
relay is publishing at that moment can be delivered twice, as after any hand-over. A delayed message is delivered now.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import NamedTuple

from outrider.operations.message_selection import MessageSelection
from outrider.operations.stored_content import StoredContent, split_content
from outrider.storage.store import Store

BATCH_SIZE = 1000


@dataclass(frozen=True)
class PendingSelection(MessageSelection):
    """Which messages; all given conditions must hold. Their age counts from the moment they were enqueued."""

    ordering_key: str | None = None
    owner: str | None = None
    """relay or scheduler."""
    due: bool = False
    """Only messages that the scheduler may claim now."""
    failed: bool = False
    """Only messages that failed at least once."""


class PendingMessage(NamedTuple):
    """A pending message without its content. The fields are in the order of the SQL fragment `pending_columns`."""

    id: int
    event_id: str
    event_type: str
    ordering_key: str | None
    exchange: str
    routing_key: str
    attempts: int
    owner: str
    state: str
    """relay (the relay publishes it), due, claimed (by a scheduler), parked (behind the head of its ordering key),
    waiting (until next_attempt_at), or unsupported (its schema_version is unknown to this version: it is not sent)."""
    behind_head: bool
    """An earlier message of its ordering key is pending."""
    next_attempt_at: datetime | None
    claimed_by: str | None
    last_error: str | None
    created_at: datetime


class RetryResult(NamedTuple):
    """How many of the selected messages were made due, and how many were skipped."""

    due: int
    claimed: int
    """Skipped: claimed by a scheduler."""
    behind: int
    """Skipped: an earlier message of their ordering key is pending."""
    busy: int
    """Skipped: deleted, claimed or locked by another transaction meanwhile."""


def retry_now(
    store: Store,
    selection: PendingSelection,
    *,
    reset_attempts: bool = False,
    dry_run: bool = False,
    batch_size: int = BATCH_SIZE,
) -> RetryResult:
    """Make messages due now; with `dry_run`, only count them."""
    due = claimed = behind = busy = 0
    for batch in _batches(store, selection, batch_size):
        free = [each.id for each in batch if not each.behind_head and each.state != "claimed"]
        behind += sum(each.behind_head for each in batch)
        claimed += sum(each.state == "claimed" and not each.behind_head for each in batch)
        retried = len(free) if dry_run or not free else len(store.retry_now(free, reset_attempts=reset_attempts))
        due += retried
        busy += len(free) - retried
    return RetryResult(due, claimed, behind, busy)


def oldest_first(store: Store, selection: PendingSelection, *, limit: int = 50) -> Iterator[PendingMessage]:
    """The oldest `limit` messages, read in batches."""
    batches = _batches(store, selection, min(limit, BATCH_SIZE))
    return islice((message for batch in batches for message in batch), limit)


def find_with_content(store: Store, selection: PendingSelection) -> tuple[PendingMessage, StoredContent] | None:
    """The newest of the selected messages, with its content; None if there is none."""
    return split_content(PendingMessage, store.pending_message(selection.parameters()))


def _batches(store: Store, selection: PendingSelection, batch_size: int) -> Iterator[list[PendingMessage]]:
    """Ascending by id, up to the newest row at the start: the walk ends although new rows are inserted."""
    parameters = selection.parameters()
    after, up_to = 0, store.newest_id()
    while rows := store.pending_messages(parameters, after=after, up_to=up_to, batch_size=batch_size):
        yield [PendingMessage._make(row) for row in rows]
        after = rows[-1][0]
