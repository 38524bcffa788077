"""
The event id of a Celery task: the task id itself if it is a UUID, and otherwise a UUID that is computed from it.

So a message can be found by any task id: operators search for the event id that belongs to it.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid5

_NAMESPACE = UUID("6f7cf0a1-93a4-5c0b-9d3d-0c9a36a2b0de")  # fixed for ever: stored event ids depend on it


def event_id_of_task(task_id: str) -> UUID:
    """The same for every message of the task."""
    try:
        return UUID(task_id)
    except ValueError:
        return uuid5(_NAMESPACE, task_id)


def task_id_of(event_id: str, headers: Any, properties: Any) -> str | None:
    """
    The task id in a message, as the caller gave it; None where the message is no task.

    Celery sends it as the header `id` (protocol 2) and as the correlation id, which a call can override.
    """
    for found, name in ((headers, "id"), (properties, "correlation_id")):
        task_id = found.get(name) if isinstance(found, dict) else None
        if isinstance(task_id, str) and str(event_id_of_task(task_id)) == event_id:
            return task_id
    return None
