"""Prefetch: who is woken by the news of a claim finds the claim done."""

from __future__ import annotations

import threading
from typing import Any

from outrider.retry_scheduler.prefetch import Prefetch
from outrider.telemetry.metrics import Metrics


class Claimer:
    """Stands for the one that claims: what is under test is only when its answer is told of."""

    def claim(self, connection: object, *, at_most: int | None) -> Any:
        return "a batch"


class Database:
    def open(self) -> None:
        pass

    def close(self) -> None:
        pass


def test_the_batch_is_there_when_the_news_of_it_comes() -> None:
    database: Any = Database()
    claimer: Any = Claimer()
    prefetch = Prefetch(database, claimer, Metrics("scheduler"))
    found: list[Any] = []
    told = threading.Event()

    def look_at_once(news: object) -> None:
        found.append(prefetch.take())
        told.set()

    prefetch._news.put = look_at_once  # type: ignore[method-assign, assignment]
    prefetch.begin(at_most=None)
    assert told.wait(10)
    assert found == ["a batch"]
    prefetch.close(1.0)
