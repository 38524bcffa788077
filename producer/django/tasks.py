"""
A Celery task for maintenance; `app.autodiscover_tasks()` finds it. Only this module and outrider.W008 need Celery.

    app.conf.beat_schedule = {
        "purge dead letters": {
            "task": "outrider.purge_dead_letters",
            "schedule": crontab(hour=3, minute=0),
            "kwargs": {"older_than_seconds": 30 * 24 * 60 * 60},
        },
    }

The scheduler's setting dead_letter_retention_seconds does the same.
"""

from __future__ import annotations

from celery import shared_task

from outrider.operations.dead_letters import DeadLetterSelection, discard
from outrider.producer.django.store import DjangoStore


@shared_task(name="outrider.purge_dead_letters")  # type: ignore[untyped-decorator]
def purge_dead_letters(older_than_seconds: float, event_type: str | None = None, database: str | None = None) -> int:
    """Delete dead letters older than this, of all types or of those that match a glob. Returns how many."""
    if not older_than_seconds >= 0:
        raise ValueError("older_than_seconds must not be negative")
    selection = DeadLetterSelection(event_type=event_type, older_than_seconds=older_than_seconds)
    return discard(DjangoStore(database), selection)
