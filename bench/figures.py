"""
The results of one run: ratios under fixed keys, the raw figures behind them, and the reason for a missing one.

Every key is always present: a result that was not measured is null and has a note.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Final, Literal

WANTED: Final[dict[str, tuple[Literal[">=", "<="], float]]] = {
    "relay_vs_broker_limit": (">=", 0.85),
    "relay_vs_django_celery_outbox": (">=", 15),
    "decode_vs_debezium": (">=", 2),
    "latency_p50_vs_direct": ("<=", 2),
    "latency_p99_vs_direct": ("<=", 3),
    "enqueue_vs_django_celery_outbox": ("<=", 0.85),
    "bulk_enqueue_vs_insert": ("<=", 1.5),
    "scheduler_vs_django_celery_outbox": (">=", 8),
    "claim_cost_1m_vs_10k": ("<=", 1.3),
    "relay_rss_growth_mb_1m_rows": ("<=", 64),
    "slot_retained_mb_during_outage": ("<=", 64),
    "worker_vs_raw_consume": (">=", 0.5),
    "append_vs_eventsourcing": (">=", 2),
    "read_cost_10m_vs_100k": ("<=", 1.3),
}
"""Every key of the results, with the wanted value."""

NOT_RUN: Final = "not part of this run"


@dataclass
class Figures:
    values: dict[str, float] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    raw: dict[str, Any] = field(default_factory=dict)

    def put(self, key: str, value: float, note: str | None = None) -> None:
        if key not in WANTED:
            raise KeyError(key)
        self.values[key] = round(value, 3)
        if note is not None:
            self.notes[key] = note

    def missing(self, key: str, reason: str) -> None:
        """Remove the result, if there is one, and note the reason."""
        self.values.pop(key, None)
        self.notes[key] = reason

    def is_as_wanted(self, key: str) -> bool | None:
        """None if there is no result."""
        if (value := self.values.get(key)) is None:
            return None
        relation, limit = WANTED[key]
        return value >= limit if relation == ">=" else value <= limit

    def as_dict(self) -> dict[str, Any]:
        absent = {key: self.notes.get(key, NOT_RUN) for key in WANTED if key not in self.values}
        return {
            **{key: self.values.get(key) for key in WANTED},
            "notes": {**self.notes, **absent},
            "raw": self.raw,
        }

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(self.as_dict(), indent=2) + "\n", encoding="utf-8")


def ratio_of_medians(ours: Sequence[float], theirs: Sequence[float]) -> float:
    return median(ours) / median(theirs)


def percentile(values: Sequence[float], share: float) -> float:
    """The value that this share of the values does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)]


def rounded(values: Sequence[float], digits: int = 1) -> list[float]:
    return [round(value, digits) for value in values]
