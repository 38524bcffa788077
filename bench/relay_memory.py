"""
relay_rss_growth_mb_1m_rows: growth of the relay's resident memory while it drains one huge transaction.

The relay has published some messages before, so that one-time allocations do not count. Its memory is read from /proc
many times a second. A consumer empties the queue meanwhile, and every message must arrive.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg

from bench.broker import declare_queue, delete_queue
from bench.figures import Figures
from bench.machine import resident_mb
from bench.messages import fill
from bench.scale import Scale
from bench.servers import BenchServers, wait_until
from bench.timed_consumer import consuming, take_all
from outrider.embedded.process import ServerProcess

QUEUE = "bench-memory"
WARM_UP_ROWS = 5_000


def measure(servers: BenchServers, scale: Scale, figures: Figures) -> None:
    url, rows = servers.rabbitmq.url, scale.memory_rows
    declare_queue(url, QUEUE)
    with servers.outbox() as database, servers.relay(database) as relay, database.connect() as connection:
        fill(connection, QUEUE, WARM_UP_ROWS)
        _wait_until_empty(connection, relay, lambda: None)
        take_all(url, QUEUE, WARM_UP_ROWS).check(WARM_UP_ROWS)
        before = resident_mb(relay.pid)
        largest = before

        def sample() -> None:
            nonlocal largest
            largest = max(largest, resident_mb(relay.pid))

        with consuming(url, QUEUE, rows) as consumer:
            fill(connection, QUEUE, rows, transaction_rows=rows)
            _wait_until_empty(connection, relay, sample)
            consumer.result().check(rows)
    delete_queue(url, QUEUE)
    note = None if rows >= 1_000_000 else f"{rows:,} rows instead of a million"
    figures.put("relay_rss_growth_mb_1m_rows", largest - before, note)
    figures.raw["relay_memory"] = {
        "rows": rows,
        "resident_mb_before": round(before, 1),
        "resident_mb_at_most": round(largest, 1),
    }


def _wait_until_empty(connection: psycopg.Connection[Any], relay: ServerProcess, sample: Callable[[], None]) -> None:
    newest = connection.execute("SELECT max(id) FROM outbox").fetchone()

    def is_empty() -> bool:
        sample()
        return connection.execute("SELECT FROM outbox WHERE id = %s", newest).fetchone() is None

    wait_until(is_empty, relay, "the relay does not drain the outbox", deadline_seconds=1200)
    wait_until(
        lambda: connection.execute("SELECT FROM outbox LIMIT 1").fetchone() is None,
        relay,
        "rows remain in the outbox",
    )
