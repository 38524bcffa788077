"""
Our side of decode_vs_debezium: `python -m bench.decode_ours DSN SLOT ROWS` (see bench.reader).

It reads the slot and turns rows into messages with the relay's own code, which is all that the relay does before it
publishes, and with the relay's setting of Python's collector. Nothing is confirmed: the slot gives the same rows again.
"""

from __future__ import annotations

import json
import select
import sys
import time
from typing import Any, Final

from outrider.cdc_relay.pgoutput import INSERT, Relation, decode
from outrider.cdc_relay.row_decoder import RowDecoder
from outrider.cdc_relay.stream import ReplicationStream
from outrider.runtime.command import spare_the_collector

READ_LIMIT: Final = 500
SILENCE_SECONDS: Final = 60.0


def read_once(dsn: str, slot: str, expected: int) -> dict[str, Any]:
    rows = RowDecoder("public")
    event_ids: list[str] = []
    first_rows, first_at = 0, 0.0
    cpu = time.process_time()
    with ReplicationStream.open(dsn) as stream:
        stream.start(slot, "outbox")
        while len(event_ids) < expected:
            arrival = stream.read(READ_LIMIT)
            for payload in () if arrival is None else arrival.messages:
                message = decode(payload)
                if message is INSERT:
                    row = rows.read(payload)
                    if row is not None:
                        event_ids.append(row.event_id)
                elif isinstance(message, Relation):
                    rows.learn(message)
            if event_ids and not first_rows:
                first_rows, first_at = len(event_ids), time.perf_counter()
            if arrival is None and not stream.has_more and not select.select([stream], [], [], SILENCE_SECONDS)[0]:
                break
        seconds = time.perf_counter() - first_at
        cpu = time.process_time() - cpu
    return {"event_ids": event_ids, "first_rows": first_rows, "seconds": seconds, "cpu_seconds": cpu}


def main() -> None:
    dsn, slot, rows = sys.argv[1:]
    spare_the_collector()
    for _ in sys.stdin:
        sys.stdout.write(json.dumps(read_once(dsn, slot, int(rows))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
