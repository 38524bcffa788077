"""
Prune: deletes rows past their retention, in small batches, the oldest first.

    archive_retention_seconds      delivered messages, counted from their delivery
    dead_letter_retention_seconds  dead letters, counted from their burial
    inbox_retention_seconds        marks of the inbox, counted from the processing of their event

All but the last are off by default. A mark of the inbox is needed only for as long as its event can be delivered again.
The log of event streams is never pruned: `outrider events delete` does that.
The presence rows of services that were killed are deleted after a day. Several schedulers may prune at the same time.
"""

from __future__ import annotations

from outrider.runtime.maintenance import MaintenanceTask
from outrider.settings.scheduler import SchedulerSettings
from outrider.storage.store import Store

BATCH_SIZE = 1000
FORGET_WORKERS_SECONDS = 86_400.0
"""How long status and doctor show a service that was killed."""


class Prune(MaintenanceTask):
    name = "prune"
    interval_seconds = 60.0

    def __init__(self, settings: SchedulerSettings) -> None:
        self._archive_seconds = settings.archive_retention_seconds
        self._dead_letter_seconds = settings.dead_letter_retention_seconds
        self._inbox_seconds = settings.inbox_retention_seconds

    def run_once(self, store: Store) -> dict[str, int]:
        """One batch of each table."""
        archived = dead = 0
        if self._archive_seconds is not None:
            archived = store.prune_archive(retention_seconds=self._archive_seconds, batch_size=BATCH_SIZE)
        if self._dead_letter_seconds is not None:
            dead = store.prune_dead_letters(retention_seconds=self._dead_letter_seconds, batch_size=BATCH_SIZE)
        marks = store.prune_inbox(retention_seconds=self._inbox_seconds, batch_size=BATCH_SIZE)
        self.unfinished = BATCH_SIZE in (archived, dead, marks)
        return {
            "pruned_archive": archived,
            "pruned_dead_letters": dead,
            "pruned_inbox": marks,
            "forgotten_workers": store.forget_workers(unseen_seconds=FORGET_WORKERS_SECONDS),
        }
