"""Prefetch: when its file descriptor becomes readable, the claim is done."""

from __future__ import annotations

import threading
from typing import Any

from outrider.retry_scheduler.prefetch import Prefetch
from outrider.telemetry.metrics import Metrics


class Claimer:
    """Returns a batch at once: only the wake-up is under test."""

    def claim(self, connection: object, *, at_most: int | None) -> Any:
        return "a batch"


class Database:
    def open(self) -> None:
        pass

    def close(self) -> None:
        pass


def test_the_batch_can_be_taken_when_the_reader_is_woken() -> None:
    database: Any = Database()
    claimer: Any = Claimer()
    prefetch = Prefetch(database, claimer, Metrics("scheduler"))
    found: list[Any] = []
    woken = threading.Event()

    def take_at_once(items: object) -> None:
        found.append(prefetch.take())
        woken.set()

    prefetch._wakeup.put = take_at_once  # type: ignore[method-assign]
    prefetch.begin(at_most=None)
    assert woken.wait(10)
    assert found == ["a batch"]
    prefetch.close(1.0)
