"""The output of a run: its figures, and for each violation the history of the message and the logs around it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from tests.faults.checker import Violation, by_kind, check, duplicates, explanations
from tests.faults.history import History
from tests.faults.processes import ProcessRun
from tests.faults.run import FaultRunResult

SHOWN_VIOLATIONS = 10
SHOWN_LINES = 60
AROUND_SECONDS = 2.0


def figures(result: FaultRunResult) -> dict[str, Any]:
    """The figures of a run, as plain values."""
    history = result.history
    repeated = duplicates(history)
    delivered = {delivery.event_id for delivery in history.deliveries}
    expected = [message for message in history.committed if message.expected_end == "delivered"]
    return {
        "seed": result.seed,
        "seconds": round(result.seconds),
        "faults": dict(Counter(fault.name for fault in history.faults).most_common()),
        "not injected here": result.unavailable_faults,
        "committed": len(history.committed),
        "committed by kind": by_kind(history),
        "rolled back": len(history.rolled_back),
        "to be delivered": len(expected),
        "lost": sum(message.event_id not in delivered for message in expected),
        "repeated by the broker": sum(second.redelivered for _, second in repeated),
        "sent again": sum(not second.redelivered for _, second in repeated),
        "sent again, by the latest fault before": _causes(history),
        "dead letters": dict(Counter(letter.reason for letter in history.dead_letters).most_common()),
        "left for a newer version": len(history.left),
        "deadlocks": result.deadlocks,
        "processes started": len(result.runs),
        "highest memory of a long-lived service (MiB)": round(max((m.peak for m in history.memory), default=0)),
        "violations": len(check(history)),
    }


def _causes(history: History) -> dict[str, int]:
    """Duplicates by the latest fault before them, which is usually the cause."""
    causes: Counter[str] = Counter()
    for first, second in duplicates(history):
        if not second.redelivered and (possible := explanations(history.faults, first, second)):
            causes[max(possible, key=lambda fault: fault.began).name] += 1
    return dict(causes.most_common())


def figures_text(result: FaultRunResult) -> str:
    lines = []
    for name, value in figures(result).items():
        if isinstance(value, dict):
            lines.append(f"{name}: {sum(value.values())}")
            lines += [f"    {count:7d}  {part}" for part, count in value.items()]
        else:
            lines.append(f"{name}: {value if value != [] else 'none'}")
    return "\n".join(lines)


def violations_text(result: FaultRunResult, violations: list[Violation]) -> str:
    """The seed, and the first violations with the history of their messages."""
    shown = violations[:SHOWN_VIOLATIONS]
    parts = [f"{len(violations)} violations; SEED={result.seed} repeats the choices"]
    for violation in shown:
        parts += ["", f"VIOLATION: {violation}"]
        if violation.event_id is not None:
            parts += _message_history(result, violation.event_id)
    if len(violations) > len(shown):
        parts += ["", f"... and {len(violations) - len(shown)} more"]
    return "\n".join(parts)


def _message_history(result: FaultRunResult, event_id: str) -> Iterator[str]:
    history = result.history
    times = list(_times(history, event_id))
    for at, what in sorted(times):
        yield f"    {at:8.3f} s  {what}"
    if not times:
        return
    since, until = min(times)[0] - AROUND_SECONDS, max(times)[0] + AROUND_SECONDS
    yield "  faults around it:"
    yield from (f"    {fault}" for fault in history.faults if fault.began <= until and fault.ended >= since)
    yield "  logs around it:"
    lines = sorted(line for run in result.runs for line in _log_lines(run, result, since, until))
    yield from (f"    {at:8.3f} s  {text}" for at, text in lines[:SHOWN_LINES])


def _times(history: History, event_id: str) -> Iterator[tuple[float, str]]:
    yield from (
        (m.at, f"written, {m.kind} {m.key or ''} {m.version or ''}")
        for m in history.committed
        if m.event_id == event_id
    )
    yield from (
        (d.at, "delivered" + (" again, redelivered by the broker" if d.redelivered else ""))
        for d in history.deliveries
        if d.event_id == event_id
    )


def _log_lines(run: ProcessRun, result: FaultRunResult, since: float, until: float) -> Iterator[tuple[float, str]]:
    for event in run.service.events():
        wall = datetime.fromisoformat(str(event.get("timestamp", "1970-01-01T00:00:00Z"))).timestamp()
        at = wall - result.began_at
        if since <= at <= until:
            shown = {
                name: value for name, value in event.items() if name not in ("timestamp", "service", "name", "level")
            }
            yield at, f"{run.service.name}: {json.dumps(shown)}"
