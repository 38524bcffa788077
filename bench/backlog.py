"""
Backlog: measures how fast a program drains a table: rows per second from its resumption until the table is empty.

The program is connected and suspended while the rows are committed, so that its start, the fill and the sleep of a
polling program are not part of the time. A rate counts only after every message was taken from the queue and its id
checked: by a consumer that takes messages as they arrive, or afterwards if no consumer runs.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, LiteralString

import psycopg

from bench.broker import declare_queue
from bench.servers import wait_until
from bench.timed_consumer import consuming, take_all
from outrider.embedded.process import ServerProcess

Fill = Callable[[psycopg.Connection[Any], int], None]

PREFETCH: Final = 1_000
"""Prefetch of the consumer, as many workers together have it. With a small one the consumer falls behind."""


@dataclass(frozen=True)
class Backlog:
    dsn: str
    table: LiteralString
    program: ServerProcess
    broker_url: str
    queue: str
    fill: Fill
    sleep_seconds: float = 0.0
    """Polling interval of the program: it is suspended for at least this long, so that it polls at once."""

    def drain(self, rows: int, *, consumed: bool = False) -> float:
        """Messages per second, with or without a consumer at the queue."""
        declare_queue(self.broker_url, self.queue)
        if consumed:
            with consuming(self.broker_url, self.queue, rows, prefetch=PREFETCH) as consumer:
                seconds = self._seconds_to_drain(rows)
                consumer.result().check(rows)
        else:
            seconds = self._seconds_to_drain(rows)
            take_all(self.broker_url, self.queue, rows).check(rows)
        return rows / seconds

    def _seconds_to_drain(self, rows: int) -> float:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            self.program.send_signal(signal.SIGSTOP)
            awake_at = time.monotonic() + self.sleep_seconds
            try:
                self.fill(connection, rows)
                newest = connection.execute(f"SELECT max(id) FROM {self.table}").fetchone()
                time.sleep(max(0.0, awake_at - time.monotonic()))
            finally:
                started = time.perf_counter()
                self.program.send_signal(signal.SIGCONT)

            def newest_is_deleted() -> bool:
                return connection.execute(f"SELECT FROM {self.table} WHERE id = %s", newest).fetchone() is None

            def table_is_empty() -> bool:
                return connection.execute(f"SELECT FROM {self.table} LIMIT 1").fetchone() is None

            # By primary key while it runs: scanning the table would use the measured processor.
            wait_until(newest_is_deleted, self.program, f"{self.table} is not drained")
            wait_until(table_is_empty, self.program, f"rows remain in {self.table}")
        return time.perf_counter() - started
