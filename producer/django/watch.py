"""
Watcher: tell Django what the services did, by looking at the tables.

Each table is read onward from a place (time, id), so that every row is read once. Rows are told `lag_seconds` late:
times are taken before a statement commits, and one that is overtaken in between must still be found.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from django.db import connections

from outbox.sqlfiles import Queries
from producer.django.conf import get_settings
from producer.django.signals import (
    outbox_message_dead_lettered,
    outbox_message_failed,
    outbox_message_sent,
    send_robustly,
)


class Told(NamedTuple):
    """How many messages receivers were told of."""

    sent: int
    failed: int
    dead_lettered: int


class Watcher:
    """Begins now. `run_once` tells what has happened since the last time, a batch of each kind at most."""

    def __init__(self, using: str | None = None, *, lag_seconds: float = 2, batch_size: int = 500) -> None:
        settings = get_settings()
        self.using = using or settings.database
        self.lag_seconds = lag_seconds
        self.batch_size = batch_size
        self._queries = Queries(settings.schema)
        [(now,)] = self._fetch("watch_from", {})
        self._places: dict[str, tuple[datetime, int]] = dict.fromkeys(("sent", "failed", "dead"), (now, 0))

    def run_once(self) -> Told:
        return Told(self._tell_sent(), self._tell_failed(), self._tell_dead())

    def _tell_sent(self) -> int:
        rows = self._next("sent")
        for message, delivered_at, _ in rows:
            send_robustly(outbox_message_sent, self, **message, delivered_at=delivered_at, using=self.using)
        return len(rows)

    def _tell_failed(self) -> int:
        rows = self._next("failed")
        for message, failed_at, (error,) in rows:
            send_robustly(outbox_message_failed, self, **message, failed_at=failed_at, error=error, using=self.using)
        return len(rows)

    def _tell_dead(self) -> int:
        rows = self._next("dead")
        if rows:
            messages = [
                {**message, "died_at": died_at, "error": error, "reason": reason}
                for message, died_at, (error, reason) in rows
            ]
            send_robustly(outbox_message_dead_lettered, self, messages=messages, using=self.using)
        return len(rows)

    def _next(self, kind: str) -> list[tuple[dict[str, Any], datetime, list[Any]]]:
        since, after = self._places[kind]
        rows = self._fetch(
            f"watch_{kind}",
            {"since": since, "after": after, "lag_seconds": self.lag_seconds, "batch_size": self.batch_size},
        )
        if rows:
            self._places[kind] = (rows[-1][4], rows[-1][0])
        return [
            ({"event_id": UUID(event_id), "event_type": event_type, "attempts": attempts}, when, rest)
            for _, event_id, event_type, attempts, when, *rest in rows
        ]

    def _fetch(self, query: str, parameters: dict[str, Any]) -> list[Any]:
        with connections[self.using].cursor() as cursor:
            cursor.execute(self._queries[query], parameters)
            return list(cursor.fetchall())
