"""
bulk_enqueue_vs_insert: `publish_many` of many messages, over the fastest bare way to write the same rows.

Bare are psycopg's executemany, which pipelines, and COPY; the rows are built beforehand, as text. `publish_many` starts
from the application's values: it encodes JSON, makes ids and headers. All are timed with the commit, into a table that
is emptied in between, without a relay.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any, Final

import psycopg

from bench.figures import Figures, ratio_of_medians
from bench.scale import Scale
from bench.stage import BenchmarkError, Stage
from bench.traffic import EVENT_TYPE, HEADERS, body
from producer import Event, Outbox

WARM_UP_ROUNDS: Final = 3
COLUMNS: Final = (
    "event_id", "event_type", "aggregate_type", "aggregate_id", "ordering_key", "exchange", "routing_key", "payload",
    "content_type", "content_encoding", "headers", "properties",
)  # fmt: skip

INSERT: Final = f"INSERT INTO outbox ({', '.join(COLUMNS)}) VALUES ({', '.join(['%s'] * len(COLUMNS))})"
COPY: Final = f"COPY outbox ({', '.join(COLUMNS)}) FROM STDIN"

Way = Callable[[psycopg.Connection[Any]], None]


def measure(stage: Stage, scale: Scale, figures: Figures) -> None:
    payloads = [json.loads(body(number)) for number in range(scale.bulk_messages)]
    outbox = Outbox()
    rows = [
        tuple(row[column] for column in COLUMNS)
        for row in (_event(number, payload).row(exchange="") for number, payload in enumerate(payloads))
    ]

    def publish_many(connection: psycopg.Connection[Any]) -> None:
        outbox.publish_many(connection, [_event(number, payload) for number, payload in enumerate(payloads)])

    def executemany(connection: psycopg.Connection[Any]) -> None:
        connection.cursor().executemany(INSERT, rows)

    def copy(connection: psycopg.Connection[Any]) -> None:
        with connection.cursor().copy(COPY) as writer:
            for row in rows:
                writer.write_row(row)

    ways: dict[str, Way] = {"publish_many": publish_many, "executemany": executemany, "copy": copy}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    with stage.outbox() as database, psycopg.connect(database.dsn) as connection:
        for number in range(WARM_UP_ROUNDS + scale.bulk_rounds):
            for name, way in ways.items():
                taken = _timed(connection, way, scale.bulk_messages)
                if number >= WARM_UP_ROUNDS:
                    seconds[name].append(taken)
    ratios = {name: ratio_of_medians(seconds["publish_many"], seconds[name]) for name in ("executemany", "copy")}
    figures.put("bulk_enqueue_vs_insert", max(ratios.values()), "against the faster of executemany and COPY")
    figures.raw["bulk_enqueue"] = {
        "messages": scale.bulk_messages,
        "ratios": {name: round(value, 3) for name, value in ratios.items()},
        "milliseconds": {name: [round(value * 1e3, 2) for value in values] for name, values in seconds.items()},
    }


def _event(number: int, payload: Any) -> Event:
    return Event(
        event_type=EVENT_TYPE, payload=payload, aggregate=("order", number), routing_key="bench", headers=HEADERS
    )


def _timed(connection: psycopg.Connection[Any], way: Way, expected: int) -> float:
    started = time.perf_counter()
    way(connection)
    connection.commit()
    seconds = time.perf_counter() - started
    count = connection.execute("SELECT count(*) FROM outbox").fetchone()
    if count != (expected,):
        raise BenchmarkError(f"{count} rows were written, not {expected}")
    connection.execute("TRUNCATE outbox")
    connection.commit()
    return seconds
