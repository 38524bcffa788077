"""
OutsideCalls: tells of task calls outside a transaction, as a warning and in the log.

The warning (OutsideTransactionWarning) is Python's: shown once per place, an error in tests that want it so. The log
has a line for each task and place at most once a minute, with the number of calls since the line before.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
import warnings

from outrider.producer.outbox import OutsideTransactionWarning, application_stack_level

INTERVAL_SECONDS = 60.0
MAX_PLACES = 1_000
"""The memory of earlier lines is cleared at this size."""

# Frames of these packages are not the application's: a callback of Django's on_commit is called by Django.
_LIBRARIES = ("celery", "kombu", "django", "contextlib", "functools")
_log = logging.getLogger(__name__)


class OutsideCalls:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        # By task and place: when a line was written, and the calls since then.
        self._seen: dict[tuple[str, str], tuple[float, int]] = {}

    def tell(self, task_name: str, text: str) -> None:
        level = application_stack_level(*_LIBRARIES)
        frame = sys._getframe(level - 1)
        self._write(task_name, f"{frame.f_code.co_filename}:{frame.f_lineno}", text)
        warnings.warn(text, OutsideTransactionWarning, stacklevel=level)

    def _write(self, task_name: str, place: str, text: str) -> None:
        now = time.monotonic()
        with self._lock:
            written_at, calls = self._seen.get((task_name, place), (None, 0))
            if written_at is not None and now - written_at < INTERVAL_SECONDS:
                self._seen[task_name, place] = (written_at, calls + 1)
                return
            if len(self._seen) >= MAX_PLACES:
                self._seen.clear()
            self._seen[task_name, place] = (now, 0)
        more = f" ({calls} more calls since the last message)" if calls else ""
        _log.warning("%s; called at %s%s", text, place, more)
