"""
A Celery task for maintenance; `app.autodiscover_tasks()` finds it. Only this module and outrider.W008 need Celery.

    app.conf.beat_schedule = {
        "purge dead letters": {
            "task": "outrider.purge_dead_letters",
            "schedule": crontab(hour=3, minute=0),
            "kwargs": {"older_than_seconds": 30 * 24 * 60 * 60},  # without: DEAD_LETTER_RETENTION_SECONDS
        },
    }

The scheduler's setting dead_letter_retention_seconds does the same.
"""

from __future__ import annotations

from celery import shared_task

from outrider.operations.dead_letters import DeadLetterSelection, discard
from outrider.producer.django.services import dead_letter_retention
from outrider.producer.django.store import DjangoStore


@shared_task(name="outrider.purge_dead_letters")  # type: ignore[untyped-decorator]
def purge_dead_letters(
    older_than_seconds: float | None = None,
    event_type: str | None = None,
    database: str | None = None,
    created_older_than_seconds: float | None = None,
) -> int:
    """
    Delete dead letters that died or were enqueued longer ago, of all types or of those that match a glob. Without an
    age: DEAD_LETTER_RETENTION_SECONDS of OUTRIDER["SERVICES"] since they died. Returns how many.
    """
    if older_than_seconds is None and created_older_than_seconds is None:
        older_than_seconds = dead_letter_retention()
        if older_than_seconds is None:
            raise ValueError("give an age, or set DEAD_LETTER_RETENTION_SECONDS in OUTRIDER['SERVICES']")
    for name, age in (
        ("older_than_seconds", older_than_seconds),
        ("created_older_than_seconds", created_older_than_seconds),
    ):
        if age is not None and not age >= 0:
            raise ValueError(f"{name} must not be negative")
    selection = DeadLetterSelection(
        event_type=event_type,
        older_than_seconds=older_than_seconds,
        created_older_than_seconds=created_older_than_seconds,
    )
    return discard(DjangoStore(database), selection)
