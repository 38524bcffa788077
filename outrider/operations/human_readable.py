"""
Counts, sizes and ages as text for people. Pure.
"""

from __future__ import annotations

from outrider.operations.outbox_state import COUNT_LIMIT


def as_count(count: int) -> str:
    """Counts are exact below COUNT_LIMIT, and a lower bound from there on."""
    return f"{count:,}" if count < COUNT_LIMIT else f"{count:,} or more"


def as_bytes(size: int | None) -> str:
    if size is None:
        return "unknown"
    number = float(size)
    for unit in ("bytes", "kB", "MB", "GB"):
        if abs(number) < 1024:
            return f"{number:.0f} {unit}" if unit == "bytes" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} TB"


def as_age(seconds: float | None) -> str:
    if seconds is None:
        return "none"
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.1f} s"
