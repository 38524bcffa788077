"""
Replay: send what was sent before once more, from the log of event streams or from the archive of delivered messages.

What is replayed enters the outbox as new messages of the relay: same event_id, same content, and the header `replayed`.
Events of a stream keep the order of their versions, archived messages the order in which they were enqueued. A consumer
that deduplicates by event_id must look at the header, or it will ignore them.

The selection is made once, at the start, and held by the server (it needs a connection that is a session: no
transaction pooler); the messages go in batches, each a transaction of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from outrider.operations.rate_limit import RateLimit
from outrider.operations.selection import like
from outrider.storage.store import Store

BATCH_SIZE = 1000


@dataclass(frozen=True)
class ReplaySelection:
    """What to send; conditions that are given must all hold."""

    archive: bool = False
    """From the archive instead of the log."""
    stream: str | None = None
    """In the archive: the ordering key."""
    event_type: str | None = None
    """A glob."""
    since: datetime | None = None
    """When it was appended; in the archive: when it was delivered."""
    until: datetime | None = None
    after: int = 0
    """The version of a stream after which to begin. The archive knows none."""

    def parameters(self) -> dict[str, object]:
        return {
            "stream": self.stream,
            "event_type": like(self.event_type),
            "since": self.since,
            "until": self.until,
            "after": self.after,
        }


class Replayable(NamedTuple):
    event_type: str
    messages: int
    first_at: datetime
    last_at: datetime


def survey(store: Store, selection: ReplaySelection) -> list[Replayable]:
    """What would be sent, by type, the most frequent first."""
    rows = store.replayable_types(selection.parameters(), archive=selection.archive)
    return [Replayable._make(row) for row in rows]


def replay(
    store: Store,
    selection: ReplaySelection,
    *,
    exchange: str | None = None,
    routing_key: str | None = None,
    batch_size: int = BATCH_SIZE,
    rate: float | None = None,
    progress: Callable[[int], None] | None = None,
) -> int:
    """
    Send it; returns how many messages entered the outbox.

    exchange     the log does not know where an event went: it goes there, or to the default exchange. An archived
                 message goes where it went, unless this says otherwise
    routing_key  in the log: the event type, in the archive: as it was, unless this says otherwise
    rate         how many a second, at most
    """
    pace = RateLimit(rate)
    replayed = 0
    batches = store.replayable_keys(
        selection.parameters(), archive=selection.archive, batch_size=pace.batch_size(batch_size)
    )
    for keys in batches:
        if selection.archive:
            sent = store.replay_archived([row_id for (row_id,) in keys], exchange=exchange, routing_key=routing_key)
        else:
            streams, versions = zip(*keys, strict=True)
            sent = store.replay_logged(streams, versions, exchange=exchange or "", routing_key=routing_key)
        replayed += sent
        if progress:
            progress(len(keys))
        pace.wait(sent)
    return replayed
