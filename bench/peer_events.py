"""
Run by the Python of the peer's virtual environment: append with the PostgreSQL recorder of `eventsourcing`.

    python -m bench.peer_events WRITERS EVENTS   with PERSISTENCE settings in the environment

Prints the seconds that each round took, as JSON. One event a transaction; each writer is a thread with a connection of
its own and an aggregate of its own. Threads, because the time goes to the database, as on our side.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from typing import Any
from uuid import uuid4

from eventsourcing.persistence import StoredEvent  # type: ignore[import-not-found]
from eventsourcing.postgres import PostgresApplicationRecorder, PostgresDatastore  # type: ignore[import-not-found]

STATE = os.environ.get("BENCH_PAYLOAD", "{}").encode()


def main(writers: int, events: int) -> None:
    datastore = PostgresDatastore(
        os.environ["PGDATABASE"],
        os.environ["PGHOST"],
        os.environ["PGPORT"],
        os.environ["PGUSER"],
        "",
        pool_size=writers,
    )
    recorder = PostgresApplicationRecorder(datastore, events_table_name="bench_events")
    recorder.create_table()
    append(recorder, writers, max(10, events // 10))  # connections, caches
    print(json.dumps(append(recorder, writers, events)))
    datastore.close()


def append(recorder: Any, writers: int, events: int) -> float:
    """Seconds for this many events in all."""

    def write() -> None:
        originator = uuid4()
        for version in range(1, events // writers + 1):
            recorder.insert_events([StoredEvent(originator, version, "bench:Event", STATE)])

    threads = [threading.Thread(target=write) for _ in range(writers)]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - started


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
