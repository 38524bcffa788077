"""
A producer: `python -m tests.faults.producer DSN SEED FILE` commits messages of all kinds until SIGTERM.

Every message has a row in the table `committed_message`, written in the same transaction, so that the database knows
what was committed, also if the connection was lost during a COMMIT. The messages of a key are numbered by their row in
`aggregate`; its lock serialises the writers of a key, as the row of an application would. Event ids of messages that
are about to be rolled back are recorded in FILE. The choices depend on the seed alone.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import uuid
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import psycopg

from outrider.producer import Event, Outbox

EXCHANGE = "faults"
QUEUES = ("queue-0", "queue-1")
KEYS = tuple(f"key-{number}" for number in range(10))
MAX_MESSAGE_BYTES = 1024 * 1024
"""The largest message that the broker of a run accepts."""

PAUSE_SECONDS = 0.012
ROLLED_BACK = 0.1
ROLLED_BACK_TO_SAVEPOINT = 0.05
SLEEPS = 0.04
HUGE_ROWS = (1500, 4000)

HARMLESS_POISON = ("unroutable", "headers", "undecodable", "unstorable", "declarations", "future")
"""Does not affect other messages; written all the time."""
CLOSING_POISON = ("exchange", "oversized")
"""The broker closes the channel, and other messages in flight may be published again: injected as a fault."""
FATAL_POISON = ("fatal", "fatal declarations")
"""The connection is reset each time it is sent (the proxies do that, on FATAL): injected as a fault."""
FATAL = "ends-the-connection"
RAW_COLUMNS = {
    "future": {"schema_version": "99"},
    "undecodable": {"properties": '{"priority": "x"}'},
    "unstorable": {"headers": '{"\\ud800": 1e400, "a\\u0000b": 1e400}'},
    "declarations": {"declarations": '[{"name": "q", "queue_arguments": {"x": 1e400}}]'},
    "fatal declarations": {"declarations": f'[{{"name": "{FATAL}"}}]'},
}
"""Rows that the producer API would not write."""

Connection = psycopg.Connection[Any]

TABLES = """
CREATE TABLE aggregate (key text PRIMARY KEY, version bigint NOT NULL);
CREATE TABLE committed_message (
    event_id    uuid        PRIMARY KEY,
    kind        text        NOT NULL,
    key         text,
    version     bigint,
    written_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    not_before  timestamptz
);
"""
NEXT_VERSION = """
INSERT INTO aggregate AS a (key, version) VALUES (%s, 1)
ON CONFLICT (key) DO UPDATE SET version = a.version + 1 RETURNING version
"""
RECORD = """
INSERT INTO committed_message (event_id, kind, key, version, not_before)
SELECT m.*, clock_timestamp() + %s * interval '1 second'
  FROM unnest(%s::uuid[], %s::text[], %s::text[], %s::bigint[]) AS m
"""
RAW = """
INSERT INTO outbox (event_id, event_type, exchange, routing_key, payload, schema_version, properties, headers,
                    declarations)
VALUES (%s, %s, %s, %s, 'raw', %s, %s, %s, %s)
"""


@dataclass
class Planned:
    """A message and its row in committed_message."""

    event: Event
    kind: str
    version: int | None = None
    event_id: str = field(init=False)

    def __post_init__(self) -> None:
        self.event_id = str(self.event.event_id)


class Writer:
    """Writes transactions over the connection that is given to `transact`."""

    def __init__(self, choice: Random, stopping: threading.Event, rolled_back: int) -> None:
        self._choice = choice
        self._stopping = stopping
        self._rolled_back = rolled_back
        self._outbox = Outbox(EXCHANGE, context=None)
        self._written: list[str] = []
        self._kinds: dict[Callable[[Connection], None], float] = {
            self._ordered: 45,
            self._plain: 25,
            self._several: 12,
            self._delayed: 5,
            self._deduplicated: 5,
            self._large: 4,
            self._poison: 3,
            self._huge: 0.25,
        }

    def transact(self, connection: Connection) -> None:
        choice = self._choice
        write = choice.choices(list(self._kinds), list(self._kinds.values()))[0]
        fails, sleeps, to_savepoint = (
            choice.random() < share for share in (ROLLED_BACK, SLEEPS, ROLLED_BACK_TO_SAVEPOINT)
        )
        self._written = []
        if to_savepoint:
            with connection.transaction(force_rollback=True):
                write(connection)
            self._record_rolled_back()
        write(connection)
        if sleeps:
            self._stopping.wait(choice.uniform(0.05, 1.5))
        if fails:
            self._record_rolled_back()
            connection.rollback()
        else:
            connection.commit()

    # -- kinds of transactions ----------------------------------------------------------------------------------------

    def _ordered(self, connection: Connection) -> None:
        self._publish(connection, [self._plan(connection, "ordered", self._key())])

    def _plain(self, connection: Connection) -> None:
        expires = 3600 if self._choice.random() < 0.2 else None
        self._publish(connection, [self._plan(connection, "plain", expires=expires)])

    def _several(self, connection: Connection) -> None:
        # Sorted, so that two producers that lock the same aggregates cannot deadlock.
        keys = sorted(self._choice.choices(KEYS, k=self._choice.randint(2, 12)))
        self._publish(connection, [self._plan(connection, "several", key) for key in keys])

    def _huge(self, connection: Connection) -> None:
        keys = sorted(self._choice.sample(KEYS, 2))
        count = self._choice.randint(*HUGE_ROWS)
        plans = [self._plan(connection, "huge", key) for key in keys for _ in range(150)]
        self._publish(connection, plans + [self._plan(connection, "huge") for _ in range(count - len(plans))])

    def _large(self, connection: Connection) -> None:
        key = self._choice.choice((None, self._key()))
        size = self._choice.randint(20_000, MAX_MESSAGE_BYTES // 2)
        self._publish(connection, [self._plan(connection, "large", key, payload=self._choice.randbytes(size))])

    def _delayed(self, connection: Connection) -> None:
        delay = self._choice.uniform(0.5, 4)
        self._publish(connection, [self._plan(connection, "delayed", deliver_after=delay)], delay)

    def _deduplicated(self, connection: Connection) -> None:
        plan = self._plan(connection, "dedup", dedup_key=f"dedup-{self._choice.randrange(4)}")
        # The count says whether the row was written.
        if self._outbox.write_row(connection, plan.event.row(exchange=EXCHANGE, context=None)):
            self._record(connection, [plan])

    def _poison(self, connection: Connection) -> None:
        self.poison(connection, self._choice.choice(HARMLESS_POISON))

    def poison(self, connection: Connection, kind: str) -> None:
        """A message that can never be delivered, sometimes with a key, whose later messages must be delivered."""
        if kind in RAW_COLUMNS:
            self._raw(connection, kind)
            return
        name = f"poison.{kind}"
        key = self._key() if self._choice.random() < 0.5 else None
        options: dict[str, dict[str, Any]] = {
            "unroutable": {"routing_key": "nowhere"},
            "headers": {"headers": {"x": "h" * 200_000}},
            "exchange": {"exchange": "amq.no-such-exchange"},
            "oversized": {"payload": bytes(3 * MAX_MESSAGE_BYTES)},
            "fatal": {"headers": {"x": FATAL}},
        }
        self._publish(connection, [self._plan(connection, name, key, **options[kind])])

    def _raw(self, connection: Connection, kind: str) -> None:
        name = kind if kind == "future" else f"poison.{kind}"
        plan = self._plan(connection, name)
        self._record(connection, [plan])
        defaults = {"schema_version": "1", "properties": "{}", "headers": "{}", "declarations": None}
        columns = {**defaults, **RAW_COLUMNS[kind]}
        connection.execute(RAW, [plan.event_id, name, EXCHANGE, QUEUES[0], *columns.values()])

    # -- steps --------------------------------------------------------------------------------------------------------

    def _key(self) -> str:
        """Choose a key; the first ones more often."""
        return KEYS[min(self._choice.randrange(len(KEYS)), self._choice.randrange(len(KEYS)))]

    def _plan(self, connection: Connection, kind: str, key: str | None = None, **options: Any) -> Planned:
        """Plan a message. Its key determines the queue, because order holds within one queue."""
        number = zlib.crc32(key.encode()) if key is not None else self._choice.randrange(len(QUEUES))
        version = None
        if key is not None:
            row = connection.execute(NEXT_VERSION, [key]).fetchone()
            assert row is not None
            version = int(row[0])
        given: dict[str, Any] = {
            "event_type": kind if kind.startswith("poison.") else f"faults.{kind}",
            "payload": json.dumps({"text": "x" * self._choice.randint(0, 800)}).encode(),
            "ordering_key": key,
            "routing_key": QUEUES[number % len(QUEUES)],
            "event_id": str(uuid.UUID(int=self._choice.getrandbits(128), version=4)),
        }
        plan = Planned(Event(**{**given, **options}), kind, version)
        self._written.append(plan.event_id)
        return plan

    def _publish(self, connection: Connection, plans: Sequence[Planned], delay_seconds: float | None = None) -> None:
        self._record(connection, plans, delay_seconds)
        self._outbox.publish_many(connection, [plan.event for plan in plans])

    def _record(self, connection: Connection, plans: Sequence[Planned], delay_seconds: float | None = None) -> None:
        columns = zip(*((p.event_id, p.kind, p.event.ordering_key, p.version) for p in plans), strict=True)
        connection.execute(RECORD, [delay_seconds, *map(list, columns)])

    def _record_rolled_back(self) -> None:
        os.write(self._rolled_back, "".join(f"{event_id}\n" for event_id in self._written).encode())
        self._written = []


def main(dsn: str, seed: str, file: str) -> None:
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    choice = Random(seed)
    writer = Writer(choice, stopping, os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644))
    while not stopping.is_set():
        try:
            with psycopg.connect(dsn, connect_timeout=2, application_name="producer") as connection:
                while not stopping.wait(choice.expovariate(1 / PAUSE_SECONDS)):
                    writer.transact(connection)
        except psycopg.Error:
            stopping.wait(0.2)


if __name__ == "__main__":
    main(*sys.argv[1:])
