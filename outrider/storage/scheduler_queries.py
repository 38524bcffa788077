"""SchedulerQueries: sql/queries/scheduler.sql, claims and their return, and the scheduler's maintenance tasks."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import NamedTuple

from outrider.storage.message import Message
from outrider.storage.query_runner import QueryRunner, all_rows
from outrider.storage.service_queries import RUN_LENGTH

UNLIMITED_BYTES = 2**62


class Sample(NamedTuple):
    """The gauges of an outbox: the numbers of `outrider status` (see outrider/operations/outbox_state.py)."""

    pending: int
    retrying: int
    parked: int
    unsupported: int
    dead: int
    oldest_seconds: float
    overdue_seconds: float


class SchedulerQueries(QueryRunner):
    def claim_due(
        self, claim: str, *, batch_size: int, lease_seconds: float, batch_bytes: int = UNLIMITED_BYTES
    ) -> tuple[list[Message], int]:
        """
        Lease due rows: together at most batch_bytes, but at least one if any is due. Returns them in the order of their
        ids, and how many were parked behind their key's head.
        """
        parameters = {
            "claim": claim,
            "batch_size": batch_size,
            "batch_bytes": batch_bytes,
            "lease": timedelta(seconds=lease_seconds),
        }
        # Binary: as text, a payload would take twice the memory.
        rows = self._run("claim_due", parameters, all_rows, binary=True)
        return [Message._make(row[1:]) for row in rows if row[1] is not None], rows[0][0]

    def next_due(self) -> float | None:
        """Seconds until the next row falls due; None when only parked rows or none are left."""
        seconds = self._value("next_due")
        return None if seconds is None else float(seconds)

    def defer(self, ids: Sequence[int], *, claim: str, cooldown_seconds: float) -> list[int]:
        """Postpone claimed rows because of a broker outage; returns the ids that were still the claim's."""
        return self._found("defer", ids, claim=claim, cooldown=timedelta(seconds=cooldown_seconds))

    def release(self, ids: Sequence[int], *, claim: str) -> list[int]:
        """Make claimed rows that were not sent due again; returns the ids that were still the claim's."""
        return self._found("release", ids, claim=claim)

    def unpark_heads(self) -> list[int]:
        """Make parked rows that have become the head of their key due; returns their ids."""
        return self._column("unpark_heads")

    def expire(self, *, batch_size: int) -> list[str]:
        """Bury one batch of messages past their expires_at; returns the event type of each."""
        return self._column("expire", batch_size=batch_size, run_length=RUN_LENGTH)

    def prune_archive(self, *, retention_seconds: float, batch_size: int) -> int:
        return self._prune("prune_archive", retention_seconds, batch_size)

    def prune_dead_letters(self, *, retention_seconds: float, batch_size: int) -> int:
        return self._prune("prune_dead_letters", retention_seconds, batch_size)

    def prune_inbox(self, *, retention_seconds: float, batch_size: int) -> int:
        return self._prune("prune_inbox", retention_seconds, batch_size)

    def forget_workers(self, *, unseen_seconds: float) -> int:
        """Delete the presence rows of services that were killed; returns how many."""
        return len(self._execute("forget_workers", unseen=timedelta(seconds=unseen_seconds)))

    def sample(self, *, most: int) -> Sample:
        """The gauges. Counts are exact below `most`; above it they are estimates."""
        return Sample._make(self._execute("sample", most=most)[0])

    def _prune(self, query: str, retention_seconds: float, batch_size: int) -> int:
        """Delete one batch; returns how many rows were deleted."""
        return len(self._execute(query, retention=timedelta(seconds=retention_seconds), batch_size=batch_size))
