"""
SignalWatcher: sends Django signals for what the services did, which it reads from the tables.

Each table is read onward from a position (time, id), so that each row is read once. Rows are read `lag_seconds` late:
the time in a row is taken before its transaction commits, so a row can become visible after a row with a later time.

Any number of processes can watch an outbox. One of them sends the signals: the one whose session holds an advisory
lock. The lock needs a session of its own. Behind a transaction pooler, run one `outbox_signals`, and the services with
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
    INTERVAL_SECONDS,
    LAG_SECONDS,
    outbox_message_dead_lettered,
    outbox_message_failed,
    outbox_message_sent,
    send_robustly,
    task_of,
)
from outrider.producer.django.store import first_line
from outrider.storage.sql_files import queries_of
from outrider.telemetry.printable import printable


class SignalCounts(NamedTuple):
    """The numbers of messages for which signals were sent."""

    sent: int
    failed: int
    dead_lettered: int


class SignalWatcher:
    """Starts at the present. `run_once` sends signals for the next rows, at most a batch of each kind."""

    def __init__(self, using: str | None = None, *, lag_seconds: float = LAG_SECONDS, batch_size: int = 500) -> None:
        settings = get_settings()
        self.using = using or settings.database
        self.lag_seconds = lag_seconds
        self.batch_size = batch_size
        self._queries = queries_of(settings.schema)
        [(now,)] = self._fetch("watch_from", {})
        self._positions: dict[str, tuple[datetime, int]] = dict.fromkeys(("sent", "failed", "dead"), (now, 0))

    def try_lock(self) -> bool:
        """Whether this session holds the lock now. It holds it until the session ends."""
        return bool(self._fetch("watch_lock", {"schema": self._queries.schema})[0][0])

    def run_once(self) -> SignalCounts:
        return SignalCounts(self._signal_sent(), self._signal_failed(), self._signal_dead_lettered())

    def _signal_sent(self) -> int:
        rows = self._next_rows("sent")
        for message, delivered_at, _ in rows:
            send_robustly(outbox_message_sent, self, **message, delivered_at=delivered_at, using=self.using)
        return len(rows)

    def _signal_failed(self) -> int:
        rows = self._next_rows("failed")
        for message, failed_at, (error,) in rows:
            send_robustly(outbox_message_failed, self, **message, failed_at=failed_at, error=error, using=self.using)
        return len(rows)

    def _signal_dead_lettered(self) -> int:
        rows = self._next_rows("dead")
        if rows:
            messages = [
                {**message, "died_at": died_at, "error": error, "reason": reason}
                for message, died_at, (error, reason) in rows
            ]
            send_robustly(outbox_message_dead_lettered, self, messages=messages, using=self.using)
        return len(rows)

    def _next_rows(self, kind: str) -> list[tuple[dict[str, Any], datetime, list[Any]]]:
        since, after = self._positions[kind]
        rows = self._fetch(
            f"watch_{kind}",
            {"since": since, "after": after, "lag_seconds": self.lag_seconds, "batch_size": self.batch_size},
        )
        if rows:
            self._positions[kind] = (rows[-1][4], rows[-1][0])
        return [
            (
                {"event_id": UUID(event_id), "event_type": event_type, **task_of(headers), "attempts": attempts},
                when,
                rest,
            )
            for _, event_id, event_type, attempts, when, headers, *rest in rows
        ]

    def _fetch(self, query: str, parameters: dict[str, Any]) -> list[Any]:
        with connections[self.using].cursor() as cursor:
            cursor.execute(self._queries[query], parameters)
            return list(cursor.fetchall())


def watch(
    stop: Callable[[float], bool],
    *,
    using: str | None = None,
    interval_seconds: float = INTERVAL_SECONDS,
    lag_seconds: float = LAG_SECONDS,
    say: Callable[[str], object] = lambda _: None,
    warn: Callable[[str], object] = lambda _: None,
) -> None:
    """Send signals, or stand by, until `stop(seconds)`, which sleeps that long, returns True."""
    alias = using or get_settings().database
    standby = _WatcherOrStandby(alias, lag_seconds, say)
    last_warning = ""
    pause = 0.0
    try:
        while not stop(pause):
            try:
                pause = 0.0 if standby.run_once() else interval_seconds
                last_warning = ""
            except Error as error:
                standby.disconnect()
                pause = interval_seconds
                reason = first_line(error)
                if reason != last_warning:
                    warn(printable(f"signals wait for the database: {reason}"))
                    last_warning = reason
    finally:
        connections[alias].close()


class _WatcherOrStandby:
    """
    Watches while it holds the lock, and tries to get the lock otherwise.

    After a lost connection it continues from its position if it gets the lock again at once. If another process has it,
    that process sends the signals meanwhile, and this one starts at the present when it gets the lock.
    """

    def __init__(self, alias: str, lag_seconds: float, say: Callable[[str], object]) -> None:
        self._alias = alias
        self._lag_seconds = lag_seconds
        self._say = say
        self._watcher: SignalWatcher | None = None
        self._locked: bool | None = None

    def run_once(self) -> bool:
        """Whether signals were sent, so that there may be more rows."""
        watcher = self._watcher or SignalWatcher(self._alias, lag_seconds=self._lag_seconds)
        if not self._locked:
            locked = watcher.try_lock()
            if locked != self._locked:
                self._say(
                    f"watching {self._alias}" if locked else f"another process watches {self._alias}: standing by"
                )
            self._locked = locked
        self._watcher = watcher if self._locked else None
        return self._locked and any(watcher.run_once())

    def disconnect(self) -> None:
        connections[self._alias].close()
        self._locked = None
