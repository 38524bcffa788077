"""
Run something at a steady rate for a time. Late iterations follow each other without a pause; a machine that cannot keep
the rate does fewer iterations, and the result has a note.
"""

from __future__ import annotations

import time
from collections.abc import Iterator


def steady_rate(rate: float, seconds: float) -> Iterator[int]:
    """Yield the numbers from 0, each at its time."""
    started = time.perf_counter()
    for number in range(round(rate * seconds)):
        if time.perf_counter() - started > seconds:
            return
        wait = started + number / rate - time.perf_counter()
        if wait > 0:
            time.sleep(wait)
        yield number
