"""
bulk_enqueue_vs_insert: `publish_many` of many messages, over the fastest plain way to write the same rows.

The plain ways are psycopg's executemany, which pipelines, and COPY, as an application without an outbox library would
use them: all start from the same values and build ids and JSON with the standard library, without checks. All are timed
with the commit, into a table that is emptied in between, without a relay. COPY of rows that were built beforehand is
among the raw figures: the least time that the database needs.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final
from uuid import uuid4

import psycopg

from bench.figures import Figures, ratio_of_medians
from bench.messages import EVENT_TYPE, HEADERS, body
from bench.scale import Scale
from bench.servers import BenchmarkError, BenchServers
from outrider.producer import Event, Outbox

WARM_UP_ROUNDS: Final = 3
COLUMNS: Final = (
    "event_id", "event_type", "aggregate_type", "aggregate_id", "ordering_key", "exchange", "routing_key", "payload",
    "content_type", "content_encoding", "headers", "properties",
)  # fmt: skip

INSERT: Final = f"INSERT INTO outbox ({', '.join(COLUMNS)}) VALUES ({', '.join(['%s'] * len(COLUMNS))})"
COPY: Final = f"COPY outbox ({', '.join(COLUMNS)}) FROM STDIN"

Write = Callable[[psycopg.Connection[Any]], None]


def measure(servers: BenchServers, scale: Scale, figures: Figures) -> None:
    payloads = [json.loads(body(number)) for number in range(scale.bulk_messages)]
    outbox = Outbox(context=None)
    finished = list(_rows(payloads))

    def publish_many(connection: psycopg.Connection[Any]) -> None:
        outbox.publish_many(connection, [_event(number, payload) for number, payload in enumerate(payloads)])

    def executemany(connection: psycopg.Connection[Any]) -> None:
        connection.cursor().executemany(INSERT, _rows(payloads))

    def copy(connection: psycopg.Connection[Any]) -> None:
        _copy(connection, _rows(payloads))

    def copy_finished(connection: psycopg.Connection[Any]) -> None:
        _copy(connection, finished)

    writers: dict[str, Write] = {
        "publish_many": publish_many,
        "executemany": executemany,
        "copy": copy,
        "copy_of_finished_rows": copy_finished,
    }
    seconds: dict[str, list[float]] = {name: [] for name in writers}
    with servers.outbox() as database, psycopg.connect(database.dsn) as connection:
        for number in range(WARM_UP_ROUNDS + scale.bulk_rounds):
            for name, write in writers.items():
                taken = _timed(connection, write, scale.bulk_messages)
                if number >= WARM_UP_ROUNDS:
                    seconds[name].append(taken)
    ratios = {name: ratio_of_medians(seconds["publish_many"], seconds[name]) for name in list(writers)[1:]}
    figures.put(
        "bulk_enqueue_vs_insert",
        max(ratios["executemany"], ratios["copy"]),
        "against the faster of executemany and COPY from the same values",
    )
    figures.raw["bulk_enqueue"] = {
        "messages": scale.bulk_messages,
        "ratios": {name: round(value, 3) for name, value in ratios.items()},
        "milliseconds": {name: [round(value * 1e3, 2) for value in values] for name, values in seconds.items()},
    }


def _event(number: int, payload: Any) -> Event:
    return Event(
        event_type=EVENT_TYPE, payload=payload, aggregate=("order", number), routing_key="bench", headers=HEADERS
    )


def _rows(payloads: Iterable[Any]) -> Iterator[tuple[Any, ...]]:
    """Build the rows that publish_many would build."""
    for number, payload in enumerate(payloads):
        headers = {"aggregate_type": "order", "aggregate_id": str(number), **HEADERS}
        yield (
            str(uuid4()), EVENT_TYPE, "order", str(number), f"order:{number}", "", "bench",
            json.dumps(payload).encode(), "application/json", "utf-8", json.dumps(headers), "{}",
        )  # fmt: skip


def _copy(connection: psycopg.Connection[Any], rows: Iterable[tuple[Any, ...]]) -> None:
    with connection.cursor().copy(COPY) as writer:
        for row in rows:
            writer.write_row(row)


def _timed(connection: psycopg.Connection[Any], write: Write, expected: int) -> float:
    started = time.perf_counter()
    write(connection)
    connection.commit()
    seconds = time.perf_counter() - started
    count = connection.execute("SELECT count(*) FROM outbox").fetchone()
    if count != (expected,):
        raise BenchmarkError(f"{count} rows were written, not {expected}")
    connection.execute("TRUNCATE outbox")
    connection.commit()
    return seconds
