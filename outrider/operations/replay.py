"""
Replay: publish events of the event log, or delivered messages of the archive, once more.

They enter the outbox as new messages with the same event_id, the same content and the headers `replayed` and
`replay_id`. Events of a stream keep the order of their versions, archived messages that in which they were enqueued.
The inbox of a consumer handles an event once for each replay_id.

The selection is made once, at the start: its keys are kept in a temporary file. The messages are enqueued in batches,
each in its own transaction.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID, uuid4

from outrider.operations.message_selection import like_pattern
from outrider.operations.rate_limit import RateLimit
from outrider.storage.store import Store

BATCH_SIZE = 1000


@dataclass(frozen=True)
class ReplaySelection:
    """What to replay; all given conditions must hold."""

    archive: bool = False
    """From the archive instead of the event log."""
    stream: str | None = None
    """With `archive`: the ordering key."""
    event_type: str | None = None
    """A glob."""
    since: datetime | None = None
    """By the time of the append; with `archive`, of the delivery."""
    until: datetime | None = None
    after: int = 0
    """Only later versions of the stream. Not for the archive."""

    def parameters(self) -> dict[str, object]:
        return vars(self) | {"event_type": like_pattern(self.event_type)}


class ReplayableType(NamedTuple):
    """The messages of one event type that a replay would enqueue."""

    event_type: str
    messages: int
    first_at: datetime
    last_at: datetime


def count_by_type(store: Store, selection: ReplaySelection) -> list[ReplayableType]:
    """What a replay would enqueue, the most frequent type first."""
    rows = store.replayable_types(selection.parameters(), archive=selection.archive)
    return [ReplayableType._make(row) for row in rows]


def replay(
    store: Store,
    selection: ReplaySelection,
    *,
    exchange: str | None = None,
    routing_key: str | None = None,
    replay_id: UUID | None = None,
    batch_size: int = BATCH_SIZE,
    rate: float | None = None,
    progress: Callable[[int], None] | None = None,
) -> int:
    """
    Enqueue the selected messages; returns how many.

    exchange     default: of an archived message its own; of an event the default exchange, because the event log does
                 not record the exchange
    routing_key  default: of an archived message its own; of an event its type
    replay_id    of the replay that this one continues; by default a new one
    rate         at most so many messages a second
    progress     called after each batch with the number of its messages
    """
    route: dict[str, Any] = {"routing_key": routing_key, "replay_id": str(replay_id or uuid4())}
    rate_limit = RateLimit(rate)
    replayed = 0
    batches = store.replayable_keys(
        selection.parameters(), archive=selection.archive, batch_size=rate_limit.batch_size(batch_size)
    )
    for keys in batches:
        if selection.archive:
            enqueued = store.replay_archived([row_id for (row_id,) in keys], exchange=exchange, **route)
        else:
            streams, versions = zip(*keys, strict=True)
            enqueued = store.replay_logged(streams, versions, exchange=exchange or "", **route)
        replayed += enqueued
        if progress:
            progress(len(keys))
        rate_limit.wait(enqueued)
    return replayed
