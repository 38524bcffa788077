"""
decode_vs_debezium: rows per second of our stream and decoder. The peer, Debezium's engine, is not measured yet: the
result is null, and our own rate is among the raw figures.

One process reads a backlog from a slot and turns it into messages, which is all that the relay does before it
publishes. Every row must come, once.
"""

from __future__ import annotations

import select
import time

from bench.figures import Figures, rounded
from bench.scale import Scale
from bench.stage import BenchmarkError, OutboxDatabase, Stage
from bench.traffic import MESSAGE_ID, fill
from cdc_relay.pgoutput import Insert, Relation, decode
from cdc_relay.rows import Rows
from cdc_relay.stream import ReplicationStream, XLogData

READ_LIMIT = 500
SILENCE_SECONDS = 30.0


def measure(stage: Stage, scale: Scale, figures: Figures) -> None:
    rates: list[float] = []
    with stage.outbox() as database:
        with database.connect() as connection:
            fill(connection, "bench", scale.decode_rows)
        # Nothing is confirmed, so the slot gives the same rows again; the first reading warms up.
        for _ in range(1 + scale.rounds):
            rates.append(_read_all(database, scale.decode_rows))
    figures.raw["decode"] = {"rows": scale.decode_rows, "rows_per_second": rounded(rates[1:])}
    figures.missing("decode_vs_debezium", "Debezium is not part of this harness yet; our own rate is in raw.decode")


def _read_all(database: OutboxDatabase, expected: int) -> float:
    rows = Rows("public")
    seen: set[int] = set()
    with ReplicationStream.open(database.dsn) as stream:
        started = time.perf_counter()
        stream.start(database.slot, "outbox")
        while len(seen) < expected:
            items = stream.read(READ_LIMIT)
            for item in items:
                if isinstance(item, XLogData):
                    message = decode(item.payload)
                    if isinstance(message, Insert):
                        row = rows.read(message)
                        seen.add(_number(row.event_id) if row is not None else -1)
                    elif isinstance(message, Relation):
                        rows.learn(message)
            if not items and not stream.has_more and not select.select([stream], [], [], SILENCE_SECONDS)[0]:
                break
        seconds = time.perf_counter() - started
    if seen != set(range(expected)):
        raise BenchmarkError(f"{len(seen)} of {expected} rows were decoded")
    return expected / seconds


def _number(event_id: str) -> int:
    match = MESSAGE_ID.fullmatch(event_id.encode())
    return int(match[1]) if match else -1
