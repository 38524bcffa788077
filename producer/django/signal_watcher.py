"""
Watcher: tell Django what the services did, by looking at the tables.

Each table is read onward from a place (time, id), so that every row is read once. Rows are told `lag_seconds` late:
times are taken before a statement commits, and one that is overtaken in between must still be found.

Of all the processes that watch an outbox one tells, the holder of an advisory lock of its session. The lock needs a
connection of its own: behind a pooler that shares sessions, run one `outbox_signals`, and the services with
--no-signals.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from django.db import Error, connections

from outrider.producer.django.conf import get_settings
from outrider.producer.django.signals import (
    outbox_message_dead_lettered,
    outbox_message_failed,
    outbox_message_sent,
    send_robustly,
)
from outrider.storage.sql_files import Queries


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

    def may_tell(self) -> bool:
        """Whether this session is the one that tells; the lock is given back with the session."""
        return bool(self._fetch("watch_lock", {"schema": self._queries.schema})[0][0])

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


def watch(
    stop: Callable[[float], bool],
    *,
    using: str | None = None,
    interval_seconds: float = 1,
    lag_seconds: float = 2,
    say: Callable[[str], object] = lambda _: None,
    warn: Callable[[str], object] = lambda _: None,
) -> None:
    """Tell, or stand by, until `stop(seconds)`, which sleeps that long, returns True."""
    alias = using or get_settings().database
    turn = _Turn(alias, lag_seconds, say)
    warned = ""
    pause = 0.0
    try:
        while not stop(pause):
            try:
                pause = 0.0 if turn.run_once() else interval_seconds
                warned = ""
            except Error as error:
                turn.lose()
                pause = interval_seconds
                trouble = next(iter(str(error).strip().splitlines()), type(error).__name__)
                if trouble != warned:
                    warn(f"signals wait for the database: {trouble}")
                    warned = trouble
    finally:
        connections[alias].close()


class _Turn:
    """After a lost connection it goes on from its place, unless somebody else has taken over: then it begins anew."""

    def __init__(self, alias: str, lag_seconds: float, say: Callable[[str], object]) -> None:
        self._alias = alias
        self._lag_seconds = lag_seconds
        self._say = say
        self._watcher: Watcher | None = None
        self._locked: bool | None = None

    def run_once(self) -> bool:
        """Whether there was something to tell, and so may be more."""
        watcher = self._watcher or Watcher(self._alias, lag_seconds=self._lag_seconds)
        if not self._locked:
            locked = watcher.may_tell()
            if locked != self._locked:
                self._say(
                    f"watching {self._alias}" if locked else f"another process watches {self._alias}: standing by"
                )
            self._locked = locked
        self._watcher = watcher if self._locked else None
        return self._locked and any(watcher.run_once())

    def lose(self) -> None:
        connections[self._alias].close()
        self._locked = None
