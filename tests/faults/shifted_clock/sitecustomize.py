"""
Shift the wall clock of a process that has this directory on its PYTHONPATH.

Python imports `sitecustomize` first, so `time.time` is shifted by FAULTS_CLOCK_SHIFT_SECONDS for all other code. The
monotonic clock stays correct, as on a real machine, and so do times that C code reads from the kernel.
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
