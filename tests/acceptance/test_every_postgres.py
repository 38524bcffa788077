"""The whole product on every supported version of PostgreSQL, and the stream by itself, column by column."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, LiteralString

import psycopg
import pytest
import structlog
from psycopg import sql
from psycopg.rows import dict_row

from outrider.cdc_relay.lsn import Lsn
from outrider.cdc_relay.pgoutput import INSERT, Relation, decode
from outrider.cdc_relay.row_decoder import RowDecoder
from outrider.cdc_relay.stream import ReplicationStream
from outrider.embedded.postgres import Postgres
from outrider.embedded.process import EmbeddedServerError
from outrider.producer import Context, Outbox
from outrider.storage.message import Message
from outrider.storage.sql_files import script
from tests.fixtures.broker import Broker, Received
from tests.fixtures.commands import run_outrider
from tests.fixtures.database import create_database, create_outbox_database
from tests.fixtures.postgres_versions import SUPPORTED, postgres_binaries
from tests.fixtures.services import RunService
from tests.fixtures.stage import Stage
from tests.fixtures.waiting import wait_for
from tests.integration import test_schema

LARGE = os.urandom(300_000)  # does not compress: stored out of line, in many pieces
UNICODE = "Zażółć gęślą jaźń 🦊"
EVERYTHING = "ALTER PUBLICATION outbox SET (publish = 'insert, update, delete, truncate')"
INSERTS = "ALTER PUBLICATION outbox SET (publish = 'insert')"


@pytest.fixture(scope="module", params=SUPPORTED)
def server(request: pytest.FixtureRequest) -> Iterator[Postgres]:
    binaries = postgres_binaries(request.param)
    with Postgres(binaries=binaries, durable=False, settings={"max_slot_wal_keep_size": "1GB"}) as server:
        assert server.version == request.param
        yield server


@pytest.fixture
def empty_stage(server: Postgres, run_service: RunService) -> Iterator[Stage]:
    """A database without an outbox."""
    stage = Stage(create_database(server.dsn()), run_service)
    yield stage
    stage.close()


# -- the stream and the queries ---------------------------------------------------------------------------------------


AS_TEXT = ("event_id", "headers", "properties", "declarations", "context")


def in_message_units(name: str) -> sql.Composed:
    """A column of the table in the units of a Message, computed in SQL."""
    expression: LiteralString = "{0}::text" if name in AS_TEXT else "{0}"
    if name.endswith("_at"):
        expression = (
            "CASE WHEN {0} = 'infinity' THEN 9223372036854775807"
            " ELSE (extract(epoch FROM {0}) * 1000000)::bigint - 946684800000000 END"
        )
    return sql.SQL(expression + " AS {0}").format(sql.Identifier(name))


def table_rows(connection: psycopg.Connection[Any]) -> list[dict[str, Any]]:
    columns = sql.SQL(", ").join(map(in_message_units, Message._fields))
    with connection.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(sql.SQL("SELECT {} FROM outbox ORDER BY id").format(columns)).fetchall()


FULL = {
    "event_id": "3e0f1c4a-7b1d-4f6e-8a59-0123456789ab",
    "schema_version": 32767,
    "event_type": UNICODE,
    "aggregate_type": "order",
    "aggregate_id": 'it\'s \\ "42"',
    "ordering_key": "order:42",
    "exchange": "shöp",
    "routing_key": "",
    "payload": bytes(range(256)),
    "content_type": "application/octet-stream",
    "content_encoding": "binary",
    "headers": '{"z": 1.10, "a": "\\u0000",   "z": 12345678901234567890123}',
    "properties": '{"priority": 9}',
    "declarations": '[{"name": "q"}, null]',
    "context": '{"request_id": "🦊"}',
    "created_at": "0001-01-01 00:00:00.000001+00",
    "expires_at": "9999-12-31 23:59:59.999999+00",
    "next_attempt_at": "infinity",
    "attempts": 2**31 - 1,
    "owner": "scheduler",
}
LEAST = {"event_type": "x", "routing_key": "q", "payload": b""}


def insert(connection: psycopg.Connection[Any], **values: Any) -> None:
    names, places = map(sql.Identifier, values), map(sql.Placeholder, values)
    statement = sql.SQL("INSERT INTO outbox ({}) VALUES ({})").format(
        sql.SQL(", ").join(names), sql.SQL(", ").join(places)
    )
    connection.execute(statement, values)


def test_the_stream_has_each_column_as_in_the_table_and_nothing_else(empty_stage: Stage) -> None:
    stage, connection = empty_stage, empty_stage.connection
    connection.execute(script("schema.sql", schema="public"))
    stage.set_up()
    connection.execute(EVERYTHING)
    with connection.transaction():
        insert(connection, **FULL)
        with connection.transaction(force_rollback=True):  # a savepoint
            insert(connection, **LEAST)
        insert(connection, **LEAST)
    with connection.transaction(force_rollback=True):
        insert(connection, **LEAST)
    insert(connection, **{**LEAST, "payload": LARGE, "headers": json.dumps({"h": UNICODE * 20_000})})
    expected = table_rows(connection)
    connection.execute("UPDATE outbox SET attempts = 0, next_attempt_at = now()")
    connection.execute("DELETE FROM outbox WHERE routing_key = ''")
    connection.execute("TRUNCATE outbox")
    insert(connection, **LEAST)
    expected += table_rows(connection)

    rows = RowDecoder("public")
    messages: list[dict[str, Any]] = []
    skipped: list[bytes] = []

    def read() -> bool:
        batch = stream.read(1000)
        for payload in () if batch is None else batch.messages:
            change = decode(payload)
            if isinstance(change, Relation):
                rows.set_relation(change)
            elif change is INSERT:
                message = rows.decode(payload)
                messages.append({} if message is None else message._asdict())
            elif change is None:
                skipped.append(payload[:1])
        return len(messages) >= len(expected)

    with ReplicationStream.open(stage.database.dsn) as stream:
        stream.start(stage.slot, stage.publication)
        wait_for(read, message="rows did not arrive in the stream")

    assert len(messages) == len(expected) == 4
    for message, row in zip(messages, expected, strict=True):
        assert message == row
    assert (messages[0]["payload"], messages[2]["payload"]) == (FULL["payload"], LARGE)
    assert skipped == [b"U", b"U", b"U", b"D", b"T"]


def test_this_version_accepts_schema_migrations_and_queries(server: Postgres) -> None:
    """Runs tests of the schema, which otherwise run on one version."""
    database = create_outbox_database(server.dsn())
    test_schema.test_schema_sql_and_the_replayed_migrations_give_the_same_database(database)
    test_schema.test_the_planner_accepts_every_query(database)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts PostgreSQL as another user")
def test_given_binaries_out_of_reach_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    binaries = postgres_binaries(14)
    monkeypatch.setattr("outrider.embedded.postgres.can_enter", lambda path, user: path != binaries)
    with Postgres(binaries=binaries, durable=False) as server, psycopg.connect(server.dsn()) as connection:
        assert connection.info.server_version // 10000 == server.version == 14
        assert Path(f"/proc/{server.pid}/exe").readlink().is_relative_to(server.directory)


def test_a_directory_without_a_server_is_named(tmp_path: Path) -> None:
    with pytest.raises(EmbeddedServerError, match=f"{tmp_path} has no PostgreSQL that runs on this machine"):
        Postgres(binaries=tmp_path)


# -- the whole product ------------------------------------------------------------------------------------------------


class Shop:
    """An application that writes messages of every kind, with the expected result of each."""

    def __init__(self, stage: Stage, queue: str) -> None:
        self.outbox = Outbox("", context=Context(structlog=True))
        self.connection = stage.connection
        self.queue = queue
        self.due: dict[str, tuple[bytes, dict[str, Any]]] = {}
        """Bodies and headers by event id."""
        self.dead: dict[str, str] = {}
        """Reasons by event id."""
        self.written = 0

    def publish(self, payload: object, **options: Any) -> str:
        options.setdefault("routing_key", self.queue)
        receipt = self.outbox.publish(self.connection, "order.placed", payload, **options)
        body = payload if isinstance(payload, bytes) else str(payload).encode()
        if receipt.new:
            self.due[str(receipt.event_id)] = body, options.get("headers", {})
        return str(receipt.event_id)

    def lose(self, reason: str, **options: Any) -> None:
        event_id = self.publish(b"never", **options)
        del self.due[event_id]
        self.dead[event_id] = reason

    def write_every_kind(self) -> None:
        with self.connection.transaction():
            self.publish(UNICODE, aggregate=("order", 1), headers={"tenant": "ä", "nested": {"a": [1, None, "é"]}})
            self.publish(b"\x00\xff\\", expires=3600)
            self.publish("later", deliver_after=0.3)
            self.publish("once", dedup_key="once")
            self.publish("once", dedup_key="once")
            self.publish(LARGE, headers={"h": UNICODE * 500})
            self.lose("expired", expires=0)

    def write_behind_a_lost_one(self) -> None:
        """Later messages of the key wait until the first one is buried."""
        with self.connection.transaction(), structlog.contextvars.bound_contextvars(request_id="r-17"):
            self.lose("max attempts", routing_key=f"{self.queue}-that-is-not-there", ordering_key="stuck")
            self.write_ordered(3, keys=["stuck"])

    def write_ordered(self, count: int, keys: list[str]) -> None:
        """One transaction, keys in turn; each body is a growing number."""
        with self.connection.transaction():
            for position in range(count):
                self.written += 1
                key = keys[position % len(keys)]
                self.publish(f"{self.written:06}", ordering_key=key, headers={"key": key})

    def roll_back(self) -> None:
        with self.connection.transaction(force_rollback=True):
            self.outbox.publish(self.connection, "order.placed", "never", routing_key=self.queue)

    def change_and_remove(self) -> None:
        """Rows that are never sent. Applications should not do this, but the stream shows it."""
        insert(self.connection, **{**LEAST, "owner": "scheduler", "next_attempt_at": "2100-01-01"})
        for statement in ("UPDATE outbox SET payload = 'x'", "DELETE FROM outbox", "TRUNCATE outbox"):
            self.connection.execute(statement)


def check_arrivals(shop: Shop, received: list[Received]) -> None:
    """Every message has arrived once and unchanged, and ordered messages are in order."""
    assert sorted(str(message.message_id) for message in received) == sorted(shop.due)
    by_key = defaultdict(list)
    for message in received:
        body, headers = shop.due[str(message.message_id)]
        assert message.body == body
        assert message.headers.items() >= headers.items()
        if key := message.headers.get("key"):
            by_key[key].append(message.body)
    assert len(by_key) == 11
    assert all(bodies == sorted(bodies) for bodies in by_key.values())


def test_the_whole_product_works_on_every_version(
    server: Postgres, empty_stage: Stage, run_service: RunService, rabbit: Broker
) -> None:
    stage = empty_stage
    environment = stage.environment(rabbit.url, max_attempts=2, backoff_seconds=0.2, poll_seconds=0.2)
    made = run_outrider("setup", env=environment)
    assert made.returncode == 0, made.stderr
    assert f"PostgreSQL {server.version}: supported (wal_level logical)" in made.stdout
    assert f"slot {stage.slot}: created" in made.stdout
    begin = Lsn.parse(stage.slot_state()["confirmed_flush_lsn"])

    relay, scheduler = (
        run_service(module, env=environment) for module in ("outrider.cdc_relay", "outrider.retry_scheduler")
    )
    relay.wait_for_line("broker_connected")
    scheduler.wait_for_line("scheduler_active")
    shop = Shop(stage, rabbit.declare_queue())
    keys = [f"key-{number}" for number in range(10)]

    stage.connection.execute(EVERYTHING)  # while this is set, the relay ignores changes that are not inserts
    shop.roll_back()
    shop.write_every_kind()
    stage.wait_until_empty()
    shop.change_and_remove()
    shop.write_behind_a_lost_one()
    relay.wait_for_event("refused", request_id="r-17")
    shop.write_ordered(50, keys)
    stage.wait_until_empty()
    stage.connection.execute(INSERTS)

    shop.write_ordered(300, keys)
    assert (relay.stop(), scheduler.stop()) == (0, 0)  # while these are in flight
    assert scheduler.events()[-1]["delivered"] >= 4  # the delayed one, and those behind the buried one
    shop.write_ordered(50, keys)
    relay, scheduler = (
        run_service(module, env=environment) for module in ("outrider.cdc_relay", "outrider.retry_scheduler")
    )
    relay.wait_for_event("caught_up")
    shop.write_ordered(50, keys)

    stage.wait_until_empty()
    stage.wait_until_confirmed()
    check_arrivals(shop, rabbit.take_what_is_there(shop.queue))
    assert {letter["event_id"]: letter["reason"] for letter in stage.rows("outbox_dead_letter")} == shop.dead
    assert Lsn.parse(stage.slot_state()["confirmed_flush_lsn"]) > begin

    wait_for(lambda: stage.connection.execute("SELECT count(*) FROM outbox_worker").fetchone() == (2,))
    examined = run_outrider("doctor", "--strict", env=environment)
    assert examined.returncode == 0, examined.stdout + examined.stderr
    status = json.loads(run_outrider("status", "--json", env=environment).stdout)
    assert (status["queues"]["pending"], status["dead"]["by_reason"]) == (0, {"expired": 1, "max attempts": 1})
    assert (status["slot"]["active"], status["slot"]["lost"], status["unseen"]) == (True, None, {})
    assert (relay.stop(), scheduler.stop()) == (0, 0)
