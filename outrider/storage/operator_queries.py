"""
OperatorQueries: sql/queries/operator.sql, which the commands and the Django admin run: pending messages, dead letters,
replay of events and of the archive, and a message enqueued by hand.

A `selection` is the parameters of a condition in the SQL: see outrider.operations.message_selection.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from tempfile import TemporaryFile
from typing import Any, NamedTuple

from outrider.storage.connection import database_errors
from outrider.storage.query_runner import QueryRunner

Selection = Mapping[str, object]


class TypeSample(NamedTuple):
    """The pending messages of one event type."""

    event_type: str
    pending: int
    retrying: int
    oldest_seconds: float


class OperatorQueries(QueryRunner):
    # -- messages that wait -------------------------------------------------------------------------------------------

    def pending_types(self, *, most: int, at_most: int) -> list[TypeSample]:
        """The `at_most` most frequent types among the `most` rows that are due first."""
        return [TypeSample._make(row) for row in self._execute("pending_types", most=most, at_most=at_most)]

    def pending_messages(self, selection: Selection, *, after: int, up_to: int, batch_size: int) -> list[Any]:
        """One batch of messages with ids in (after, up_to], the oldest first."""
        return self._execute("pending_messages", **selection, after=after, up_to=up_to, batch_size=batch_size)

    def pending_message(self, selection: Selection) -> Sequence[Any] | None:
        """The newest message of the selection, with its content."""
        return self._first("pending_message", **selection)

    def retry_now(self, ids: Sequence[int], *, reset_attempts: bool) -> list[int]:
        """Make rows due for the scheduler; returns the ids that are: not claimed, and at the head of their key."""
        return self._column("retry_now", ids=list(ids), reset_attempts=reset_attempts)

    # -- dead letters -------------------------------------------------------------------------------------------------

    def newest_dead_letter(self) -> int:
        """The largest id among the dead letters; 0 when there are none."""
        return int(self._value("newest_dead_letter"))

    def dead_letters(self, selection: Selection, *, before: tuple[datetime, int] | None, batch_size: int) -> list[Any]:
        """A page of dead letters, the newest first. `before`: died_at and id of the last one of the page before."""
        died_at, row_id = before or (None, None)
        return self._execute("dead_letters", **selection, before=died_at, before_id=row_id, batch_size=batch_size)

    def dead_letter(self, selection: Selection) -> Sequence[Any] | None:
        """The newest dead letter of the selection, with its content."""
        return self._first("dead_letter", **selection)

    def dead_outlines(
        self, selection: Selection, *, after: int, up_to: int, batch_size: int
    ) -> list[tuple[int, str, str, str | None, datetime]]:
        """One batch of dead letters with ids in (after, up_to]: id, reason, event_type, last_error, died_at."""
        return self._execute("dead_outlines", **selection, after=after, up_to=up_to, batch_size=batch_size)

    def replay_dead(self, ids: Sequence[int]) -> list[tuple[int, str | None, str | None]]:
        """
        Move dead letters back into the outbox; returns those that were found: id, dedup_key, and why it was not moved
        (None: it was; else a key of SKIPPED in outrider.operations.dead_letters).
        """
        return self._execute("replay_dead", ids=list(ids))

    def discard_dead(self, ids: Sequence[int]) -> int:
        """Delete dead letters; returns how many."""
        return len(self._execute("discard_dead", ids=list(ids)))

    # -- replay of events and of the archive --------------------------------------------------------------------------

    def replayable_types(self, selection: Selection, *, archive: bool) -> list[Any]:
        """What a replay would send: event_type, count, first and last time."""
        return self._execute("archived_types" if archive else "logged_types", **selection)

    def replayable_keys(
        self, selection: Selection, *, archive: bool, batch_size: int
    ) -> Iterator[list[tuple[Any, ...]]]:
        """The keys of what a replay sends, in order and in batches, as of the start of the call."""
        # Read into a file, in one transaction: an open transaction would hold back vacuum for as long as a rate-limited
        # replay runs, and a cursor WITH HOLD needs a session, which a pooler in transaction mode does not give.
        with TemporaryFile("w+") as keys:
            with (
                database_errors(),
                self.connection.transaction(),
                self.connection.cursor("outbox_replay") as cursor,
            ):
                cursor.execute(self.queries["archived_keys" if archive else "logged_keys"], selection)
                while batch := cursor.fetchmany(batch_size):
                    keys.write(json.dumps(batch) + "\n")
            keys.seek(0)
            for line in keys:
                yield [tuple(key) for key in json.loads(line)]

    def replay_logged(
        self,
        streams: Sequence[str],
        versions: Sequence[int],
        *,
        exchange: str,
        routing_key: str | None,
        replay_id: str,
    ) -> int:
        """Enqueue these events of the log again; returns how many were found."""
        route = {"exchange": exchange, "routing_key": routing_key, "replay_id": replay_id}
        return int(self._value("replay_logged", streams=list(streams), versions=list(versions), **route))

    def replay_archived(
        self, ids: Sequence[int], *, exchange: str | None, routing_key: str | None, replay_id: str
    ) -> int:
        """Enqueue these archived messages again; returns how many were found."""
        route = {"exchange": exchange, "routing_key": routing_key, "replay_id": replay_id}
        return int(self._value("replay_archived", ids=list(ids), **route))

    # -- the log of event streams -------------------------------------------------------------------------------------

    def count_deletable_events(self, *, older_than: timedelta, category: str | None) -> int:
        """How many events `delete_events` would delete."""
        return int(self._value("count_deletable_events", older_than=older_than, category=category))

    def delete_events(self, *, older_than: timedelta, category: str | None, batch_size: int) -> int:
        """Delete one batch of events, but the newest of each stream; returns how many."""
        return int(self._value("delete_events", older_than=older_than, category=category, batch_size=batch_size))

    def forget_subject(self, subject: str) -> bool:
        """Delete the key of a subject; returns whether it had one."""
        return bool(self._value("forget_subject", subject=subject))

    # -- one message by hand ------------------------------------------------------------------------------------------

    def enqueue(self, row: Mapping[str, object], *, delayed: bool) -> bool:
        """Insert a message. False: a message with its dedup_key is pending, and nothing was written."""
        with database_errors():
            cursor = self.connection.execute(self.queries["enqueue_delayed" if delayed else "enqueue_once"], row)
            return cursor.rowcount == 1

    def enqueued_id(self, event_id: str, *, after: int) -> int:
        """The id of a message that was enqueued after the row with the id `after`."""
        return int(self._value("enqueued_id", event_id=event_id, after=after))

    def delivery_status(self, row_id: int) -> tuple[str | None, int, str | None] | None:
        """Dead-letter reason (None while pending), attempts and last error; None when the message was delivered."""
        status: tuple[str | None, int, str | None] | None = self._first("delivery_status", id=row_id)
        return status
