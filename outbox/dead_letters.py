"""
Dead letters: replay them, discard them, look at them.

A message is replayed by one statement that moves it from outbox_dead_letter back into the outbox: same event_id, same
content, no attempt spent, a new id (so it goes to the end of its ordering key). The relay then sends it like any new
message, or the scheduler where there is no relay. Replaying twice is harmless: what is back in the outbox is no dead
letter any more.

Work is done in batches, each a transaction of its own: what a lost connection interrupts can simply be done again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from outbox.store import Store

BATCH_SIZE = 1000


@dataclass(frozen=True, slots=True)
class Selection:
    """Which dead letters; conditions that are given must all hold. Without any: all of them."""

    ids: Sequence[int] | None = None
    event_type: str | None = None
    """A glob: `*` and `?` stand for any characters, and any one."""
    reason: str | None = None
    """max attempts, expired, rejected or undecodable."""
    older_than_seconds: float | None = None
    """Since they were buried."""

    def parameters(self) -> dict[str, object]:
        seconds = self.older_than_seconds
        return {
            "ids": None if self.ids is None else list(self.ids),
            "event_type": None if self.event_type is None else _like(self.event_type),
            "reason": self.reason,
            "older_than": None if seconds is None else timedelta(seconds=seconds),
        }


class Replayed(NamedTuple):
    replayed: int
    kept: int
    """Still dead letters, because a message with the same dedup_key is pending."""


class DeadLetter(NamedTuple):
    """What operators see of one: not what the message says."""

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


def replay(store: Store, selection: Selection, *, batch_size: int = BATCH_SIZE) -> Replayed:
    """Put them back into the outbox, in their old order."""
    parameters = selection.parameters()
    up_to = store.newest_dead_letter()
    after: int | None = 0
    replayed = kept = 0
    while after is not None:
        looked_at, moved, after = store.replay_dead(parameters, after=after, up_to=up_to, batch_size=batch_size)
        replayed += moved
        kept += looked_at - moved
    return Replayed(replayed, kept)


def discard(store: Store, selection: Selection, *, batch_size: int = BATCH_SIZE) -> int:
    """Delete them for good; returns how many."""
    parameters = selection.parameters()
    discarded = 0
    while gone := store.discard_dead(parameters, batch_size=batch_size):
        discarded += gone
    return discarded


def purge(store: Store, *, older_than_seconds: float, event_type: str | None = None) -> int:
    """Delete those that died longer ago, of all types or of one; returns how many."""
    return discard(store, Selection(event_type=event_type, older_than_seconds=older_than_seconds))


def browse(store: Store, selection: Selection, *, at_most: int = 50) -> list[DeadLetter]:
    """The newest of them, the newest first."""
    return [DeadLetter._make(row) for row in store.dead_letters(selection.parameters(), at_most=at_most)]


def _like(glob: str) -> str:
    """The LIKE pattern of a glob."""
    escaped = glob.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return escaped.replace("*", "%").replace("?", "_")
