"""
append_vs_eventsourcing: events appended per second, over those of the library `eventsourcing`.

One event a transaction, with one writer and with eight, each to a stream of its own; the smaller of the two ratios
counts. The peer is its PostgresApplicationRecorder, which the library's applications use: it opens a transaction and
pipelines its statements. Ours is EventStreams.append with the expected version, which also writes the message to the
outbox: one statement, on a connection in autocommit, so that it is a transaction of its own. Both run in threads of a
process of their own, on the same server with its default durability.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from statistics import median
from typing import Any, Final
from urllib.parse import urlsplit

import psycopg

from bench.figures import Figures, rounded
from bench.messages import EVENT_TYPE, body
from bench.peer_venv import installed
from bench.scale import Scale
from bench.servers import ROOT, BenchmarkError, BenchServers
from outrider.producer import Event, EventStreams, Outbox

PEER: Final = "eventsourcing[postgres]==9.5.0"
WRITERS: Final = (1, 8)


def interpreter() -> Path:
    """The peer's Python; installs the peer if necessary."""
    return installed("eventsourcing", [PEER, f"psycopg[binary]=={psycopg.__version__}"])


def measure(servers: BenchServers, scale: Scale, figures: Figures) -> None:
    rates: dict[str, dict[int, list[float]]] = {who: {n: [] for n in WRITERS} for who in ("ours", "theirs")}
    for _ in range(scale.rounds):
        for writers in WRITERS:
            events = scale.append_events * (1 if writers == 1 else 2)
            with servers.outbox() as database:
                python, module = sys.executable, "bench.append_rate"
                rates["ours"][writers].append(events / _seconds(Path(python), module, database.dsn, writers, events))
            with servers.database("eventsourcing") as dsn:
                rates["theirs"][writers].append(
                    events / _seconds(interpreter(), "bench.peer_events", dsn, writers, events)
                )
    ratios = {n: median(rates["ours"][n]) / median(rates["theirs"][n]) for n in WRITERS}
    figures.put(
        "append_vs_eventsourcing",
        min(ratios.values()),
        ", ".join(f"{ratio:.2f} with {n} writer{'s' * (n > 1)}" for n, ratio in ratios.items()),
    )
    figures.raw["append"] = {
        f"{who}_per_second_{n}_writers": rounded(values) for who in rates for n, values in rates[who].items()
    }


def _seconds(python: Path, module: str, dsn: str, writers: int, events: int) -> float:
    parts = urlsplit(dsn)
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "BENCH_PAYLOAD": body(1).decode(),
        "BENCH_DATABASE_URL": dsn,
        "PGHOST": str(parts.hostname),
        "PGPORT": str(parts.port),
        "PGUSER": str(parts.username),
        "PGDATABASE": parts.path[1:],
    }
    run = subprocess.run(
        [str(python), "-m", module, str(writers), str(events)],
        check=False,
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        process_group=0,
    )
    if run.returncode != 0:
        raise BenchmarkError(f"{module} ended with {run.returncode}: {(run.stderr.strip().splitlines() or [''])[-1]}")
    return float(json.loads(run.stdout))


def append(dsn: str, streams: EventStreams, writers: int, events: int, payload: Any) -> float:
    """Seconds for this many events in all."""
    connections = [psycopg.connect(dsn, autocommit=True) for _ in range(writers)]

    def write(connection: psycopg.Connection[Any], stream: str) -> None:
        for version in range(events // writers):
            streams.append(connection, stream, [Event(event_type=EVENT_TYPE, payload=payload)], version)

    threads = [
        threading.Thread(target=write, args=(connection, f"bench:{number}.{events}"))
        for number, connection in enumerate(connections)
    ]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    taken = time.perf_counter() - started
    for connection in connections:
        connection.close()
    return taken


def main(writers: int, events: int) -> None:
    dsn, payload = os.environ["BENCH_DATABASE_URL"], json.loads(os.environ["BENCH_PAYLOAD"])
    streams = EventStreams(Outbox(context=None, outside_transaction="allow"))
    append(dsn, streams, writers, max(10, events // 10), payload)  # connections, caches
    print(json.dumps(append(dsn, streams, writers, events, payload)))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
