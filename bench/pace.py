"""
Do something at a steady rate for a time. What falls behind is done at once, one after the other; a machine that cannot
keep the rate does fewer in that time, and its results say so.
"""

from __future__ import annotations

import time
from collections.abc import Iterator


def paced(rate: float, seconds: float) -> Iterator[int]:
    """The numbers from 0, each when its time has come."""
    started = time.perf_counter()
    for number in range(round(rate * seconds)):
        if time.perf_counter() - started > seconds:
            return
        wait = started + number / rate - time.perf_counter()
        if wait > 0:
            time.sleep(wait)
        yield number
