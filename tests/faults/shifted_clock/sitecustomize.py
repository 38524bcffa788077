"""
A wall clock that is wrong, for the process that finds this directory on its PYTHONPATH.

Python imports `sitecustomize` before anything else, so `time.time` is shifted by FAULTS_CLOCK_SHIFT_SECONDS for all
that follows. The monotonic clock stays right, as on a real machine, and so does what C code asks the kernel.
"""

from __future__ import annotations

import os
import time

_SHIFT_NANOSECONDS = round(float(os.environ.get("FAULTS_CLOCK_SHIFT_SECONDS", "0")) * 1e9)
_time_ns = time.time_ns


def _shifted_ns() -> int:
    return _time_ns() + _SHIFT_NANOSECONDS


time.time_ns = _shifted_ns
time.time = lambda: _shifted_ns() / 1e9
