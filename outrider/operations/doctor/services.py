"""
The services: which are running, does a scheduler process the due rows, and can the rows be read?
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from outrider.operations.doctor.finding import Finding, ok, warning
from outrider.operations.human_readable import as_age, as_count
from outrider.operations.outbox_state import QueueCounts, ServicePresence
from outrider.storage.message import OLDEST_SCHEMA_VERSION, SCHEMA_VERSION

LONG_OVERDUE_SECONDS = 60.0


def check_scheduler(queues: QueueCounts, workers: Sequence[ServicePresence]) -> Finding:
    running = sum(worker.kind == "scheduler" and not worker.stale for worker in workers)
    overdue = queues.overdue_seconds or 0.0
    found = f"{as_count(queues.due)} rows are due, the oldest for {as_age(overdue)}"
    if queues.due and not running:
        return warning("scheduler", f"{found}, and no scheduler is running", "start retry-scheduler")
    if overdue > LONG_OVERDUE_SECONDS:
        return warning(
            "scheduler",
            f"{found}, although schedulers are running ({running})",
            "check the broker (in an outage the scheduler's circuit breaker is open), or start more schedulers",
        )
    if running:
        return ok("scheduler", f"{running} running, {as_count(queues.due)} rows are due")
    return ok("scheduler", "none is running, and no row is due")


def check_schema_versions(queues: QueueCounts) -> Iterator[Finding]:
    """No finding if every row can be read."""
    if queues.unsupported:
        yield warning(
            "schema_version",
            f"{as_count(queues.unsupported)} rows have a schema_version that this version of outrider cannot read (it "
            f"reads {OLDEST_SCHEMA_VERSION} to {SCHEMA_VERSION}); they are not sent",
            "upgrade relay, scheduler and this command to the version of the application that wrote the rows",
        )


def check_workers(workers: Sequence[ServicePresence]) -> Finding:
    stale = [worker for worker in workers if worker.stale]
    if stale:
        names = ", ".join(
            f"{worker.kind} {worker.name} on {worker.host} ({as_age(worker.silent_seconds)})" for worker in stale[:3]
        )
        more = f" and {len(stale) - 3} more" if len(stale) > 3 else ""
        return warning(
            "workers",
            f"not seen lately: {names}{more}",
            "they were killed or cannot reach the database: restart them, or DELETE the rows of outbox_worker that are "
            "gone for good",
        )
    running = ", ".join(f"{worker.kind} {worker.name} ({worker.role})" for worker in workers[:5])
    return ok("workers", running or "none is running")
