"""
Prune: what has been kept long enough goes, in small batches, the oldest first.

    archive_retention_seconds      delivered messages, from their delivery on
    dead_letter_retention_seconds  dead letters, from their burial on
    event_retention_seconds        events of streams, from their append on; the newest event of a stream stays for ever
    inbox_retention_seconds        marks of the inbox, from the processing of their event on

All but the last are off by default: nothing is deleted that nobody asked to be deleted. A mark of the inbox only says
that an event was processed, which matters for as long as it can come again. The rows of services that died are
forgotten after a day. Several schedulers may prune at once.
"""

from __future__ import annotations

from datetime import datetime

from outrider.settings.models import SchedulerSettings
from outrider.storage.store import Store

BATCH_SIZE = 1000
FORGET_WORKERS_SECONDS = 86_400.0
"""Status and doctor show for so long that a service died."""


class Prune:
    name = "prune"
    interval_seconds = 60.0

    def __init__(self, settings: SchedulerSettings) -> None:
        self._archive_seconds = settings.archive_retention_seconds
        self._dead_letter_seconds = settings.dead_letter_retention_seconds
        self._event_seconds = settings.event_retention_seconds
        self._inbox_seconds = settings.inbox_retention_seconds
        self._events_after: datetime | None = None
        self.unfinished = False

    def run_once(self, store: Store) -> dict[str, int]:
        """One batch of each; returns how many rows went."""
        archived = dead = 0
        if self._archive_seconds is not None:
            archived = store.prune_archive(retention_seconds=self._archive_seconds, batch_size=BATCH_SIZE)
        if self._dead_letter_seconds is not None:
            dead = store.prune_dead_letters(retention_seconds=self._dead_letter_seconds, batch_size=BATCH_SIZE)
        events = self._prune_events(store)
        marks = store.prune_inbox(retention_seconds=self._inbox_seconds, batch_size=BATCH_SIZE)
        self.unfinished = BATCH_SIZE in (archived, dead, marks) or self._events_after is not None
        return {
            "pruned_archive": archived,
            "pruned_dead_letters": dead,
            "pruned_events": events,
            "pruned_inbox": marks,
            "forgotten_workers": store.forget_workers(unseen_seconds=FORGET_WORKERS_SECONDS),
        }

    def _prune_events(self, store: Store) -> int:
        """The next stretch of the walk through old events; a short one is the last, and the next walk starts anew."""
        if self._event_seconds is None:
            return 0
        looked_at, gone, reached = store.prune_events(
            retention_seconds=self._event_seconds, batch_size=BATCH_SIZE, after=self._events_after
        )
        self._events_after = reached if looked_at == BATCH_SIZE else None
        return gone
