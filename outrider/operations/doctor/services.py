"""
The services: who lives, and is there somebody for the rows that wait?
"""

from __future__ import annotations

from collections.abc import Sequence

from outrider.operations.doctor.finding import Finding, ok, warning
from outrider.operations.formatting import as_age, as_count
from outrider.operations.state import Queues, Worker

LONG_OVERDUE_SECONDS = 60.0


def check_scheduler(queues: Queues, workers: Sequence[Worker]) -> Finding:
    living = [worker for worker in workers if worker.kind == "scheduler" and not worker.stale]
    overdue = queues.overdue_seconds or 0.0
    found = f"{as_count(queues.due)} rows are due, for {as_age(overdue)} at most"
    if queues.due and not living:
        return warning("scheduler", f"{found}, and no scheduler lives", "start retry-scheduler")
    if overdue > LONG_OVERDUE_SECONDS:
        return warning(
            "scheduler",
            f"{found}, though {len(living)} live",
            "see whether the broker is down (the scheduler's breaker), or start more of them",
        )
    if living:
        return ok("scheduler", f"{len(living)} live, {as_count(queues.due)} rows are due")
    return ok("scheduler", "none lives, and nothing waits for one")


def check_workers(workers: Sequence[Worker]) -> Finding:
    stale = [worker for worker in workers if worker.stale]
    if stale:
        names = ", ".join(
            f"{worker.kind} {worker.name} on {worker.host} ({as_age(worker.silent_seconds)})" for worker in stale[:3]
        )
        more = f" and {len(stale) - 3} more" if len(stale) > 3 else ""
        return warning(
            "workers",
            f"not seen lately: {names}{more}",
            "they were killed, or cannot reach the database; DELETE the rows of outbox_worker that are gone for good",
        )
    living = ", ".join(f"{worker.kind} {worker.name} ({worker.role})" for worker in workers[:5])
    return ok("workers", living or "none lives")
