"""
Our side of decode_vs_debezium: `python -m bench.decode_ours DSN SLOT ROWS` (see bench.slot_reader).

It reads the slot and decodes rows into messages with the relay's own code, which is everything that the relay does
before it publishes, and with the relay's garbage-collection settings. Nothing is confirmed: the slot sends the same
rows again.
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
from outrider.runtime.command import tune_garbage_collection

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
            batch = stream.read(READ_LIMIT)
            for payload in () if batch is None else batch.messages:
                message = decode(payload)
                if message is INSERT:
                    row = rows.decode(payload)
                    if row is not None:
                        event_ids.append(row.event_id)
                elif isinstance(message, Relation):
                    rows.set_relation(message)
            if event_ids and not first_rows:
                first_rows, first_at = len(event_ids), time.perf_counter()
            if batch is None and not stream.has_more and not select.select([stream], [], [], SILENCE_SECONDS)[0]:
                break
        seconds = time.perf_counter() - first_at
        cpu = time.process_time() - cpu
    return {"event_ids": event_ids, "first_rows": first_rows, "seconds": seconds, "cpu_seconds": cpu}


def main() -> None:
    dsn, slot, rows = sys.argv[1:]
    tune_garbage_collection()
    for _ in sys.stdin:
        sys.stdout.write(json.dumps(read_once(dsn, slot, int(rows))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
