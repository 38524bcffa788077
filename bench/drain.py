"""
How fast a program drains a backlog: rows per second from its resumption until the table is empty.

The program is connected and suspended while the rows are committed, so that neither its start nor the fill is part of
the time; nor is the sleep of a program that looks at the table from time to time. The rate counts only after every
message was taken from the queue, which was empty before, and its id checked: by a consumer that takes and acknowledges
them as they come, or, with nobody at the queue meanwhile, afterwards.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, LiteralString

import psycopg

from bench.arrivals import consuming, take_all
from bench.broker import declare_queue
from bench.stage import wait_until
from outrider.embedded.process import ServerProcess

Fill = Callable[[psycopg.Connection[Any], int], None]

PREFETCH: Final = 1_000
"""Of the consumer: as many workers together have. With too few it does not keep up, and the queue grows after all."""


@dataclass(frozen=True)
class Backlog:
    dsn: str
    table: LiteralString
    program: ServerProcess
    broker_url: str
    queue: str
    fill: Fill
    sleep_seconds: float = 0.0
    """How long the program sleeps between two looks: it is suspended for at least so long, and wakes at once."""

    def drain(self, rows: int, *, consumed: bool = False) -> float:
        """Messages per second, with a consumer at the queue or without."""
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

            def newest_is_gone() -> bool:
                return connection.execute(f"SELECT FROM {self.table} WHERE id = %s", newest).fetchone() is None

            def all_are_gone() -> bool:
                return connection.execute(f"SELECT FROM {self.table} LIMIT 1").fetchone() is None

            # By the primary key while it runs: a look at the whole table takes from the processor that is measured.
            wait_until(newest_is_gone, self.program, f"{self.table} is not drained")
            wait_until(all_are_gone, self.program, f"rows are left in {self.table}")
        return time.perf_counter() - started
