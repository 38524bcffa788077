"""
Options of a task call that belong to the outbox: `dedup_key`, and those that a task call does not have.

`dedup_key` is for the call of a single task that is captured. Everywhere else it would be ignored, so it is refused:
in groups, chains, chords and callbacks, which Celery enqueues in parts, and in calls that go to the broker directly.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from functools import lru_cache
from typing import Any

from celery.utils.functional import maybe_list

from outrider.producer.event import EventOptions

DEDUP_KEY = "dedup_key"

# Celery has these too.
_SHARED = {"exchange", "expires", "headers", "routing_key"}
_ONLY_EVENTS = EventOptions.__annotations__.keys() - _SHARED - {DEDUP_KEY}


class DuplicateTask(Exception):
    """Raised inside a task call, and caught there: a message with the same dedup_key waits."""

    def __init__(self, waiting_task_id: str | None) -> None:
        super().__init__(waiting_task_id)
        self.waiting_task_id = waiting_task_id


def check_options(options: Mapping[str, Any]) -> None:
    """TypeError for an option that a task call would ignore; ValueError for a dedup_key where it cannot work."""
    stamps = options.get("stamped_headers") or ()
    for name in options:
        if name not in stamps and (problem := _problem_with(name)):
            raise TypeError(problem)
    if options.get(DEDUP_KEY) is not None and any(options.get(name) for name in ("chain", "chord", "group_id")):
        raise ValueError("dedup_key is for the call of a single task, not for parts of a chain, group or chord")
    for each in _signatures_in(options):
        if each.get("options", {}).get(DEDUP_KEY) is not None:
            raise ValueError(f"{each.get('task')}: a callback or a part of a chain or chord cannot have a dedup_key")


@lru_cache(1_000)
def _problem_with(name: str) -> str | None:
    if name in _ONLY_EVENTS:
        return f"{name} is an option of events (Outbox.publish): a task has no {name}"
    if name != DEDUP_KEY and get_close_matches(name, [DEDUP_KEY, *_ONLY_EVENTS], n=1, cutoff=0.8):
        return f"a task call has no option {name}; the outbox has {DEDUP_KEY}"
    return None


def _signatures_in(options: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The signatures that a call carries, at any depth."""
    for name in ("link", "link_error", "chain", "chord"):
        if given := options.get(name):
            yield from _walk(maybe_list(given))


def _walk(signatures: Any) -> Iterator[Mapping[str, Any]]:
    for each in signatures:
        if not isinstance(each, Mapping):
            continue
        yield each
        yield from _signatures_in(each.get("options") or {})
        parts = each.get("kwargs") or {}
        for name in ("tasks", "header", "body"):
            if inner := parts.get(name):
                tasks = inner if not isinstance(inner, Mapping) else [inner]
                yield from _walk(tasks if isinstance(tasks, list | tuple) else [])
