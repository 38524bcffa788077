"""Least privilege: every role can do its job, and nothing else."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, LiteralString
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg import sql

from outrider.consumer.inbox import Inbox
from outrider.operations.setup.apply import create_slot
from outrider.operations.setup.facts import slot_state
from outrider.producer import Outbox
from outrider.storage.decision import Burial, Retry
from outrider.storage.sql_files import script
from outrider.storage.store import Store
from tests.fixtures.broker import Broker
from tests.fixtures.database import Database
from tests.fixtures.rows import insert_rows, query
from tests.fixtures.stage import Stage

JOBS = ("producer", "relay", "scheduler", "consumer", "observer")
TABLES = (
    *("outbox", "outbox_dead_letter", "outbox_archive", "outbox_event", "outbox_inbox", "outbox_worker"),
    *("outbox_migration", "outbox_epoch", "outbox_snapshot"),
)

Roles = dict[str, str]


@pytest.fixture
def roles(database: Database) -> Iterator[Roles]:
    """Roles are shared by all databases of a server: unique names, dropped after the test."""
    names = {job: f"{job}_{uuid.uuid4().hex[:8]}" for job in JOBS}
    with database.connect() as connection:
        connection.execute(script("roles.sql", schema="public", **names))
        yield names
        for name in names.values():
            connection.execute(sql.SQL("DROP OWNED BY {}").format(sql.Identifier(name)))
            connection.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(name)))


@contextmanager
def acting_as(database: Database, role: str) -> Iterator[psycopg.Connection[Any]]:
    with database.connect() as connection:
        connection.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(role)))
        yield connection


def enqueue(database: Database, count: int = 1) -> list[int]:
    with database.connect() as connection:
        return insert_rows(connection, count, due_in="30 seconds")


def test_a_producer_enqueues(database: Database, roles: Roles) -> None:
    outbox = Outbox("shop")
    with acting_as(database, roles["producer"]) as connection, connection.transaction():
        assert outbox.publish(connection, "order.placed", {"n": 1}, aggregate=("order", 1)).new
        assert outbox.publish(connection, "order.placed", {"n": 1}, dedup_key="once").new
        assert not outbox.publish(connection, "order.placed", {"n": 1}, dedup_key="once").new
        outbox.publish_many(connection, [{"event_type": "a", "payload": {}}, {"event_type": "b", "payload": {}}])


def test_a_relay_settles_fails_buries_hands_over_and_shows_its_presence(database: Database, roles: Roles) -> None:
    ids = enqueue(database, 6)
    with acting_as(database, roles["relay"]) as connection:
        store = Store(connection, "public")
        assert store.settle(ids[:1]) == ids[:1]
        assert store.settle(ids[1:2], archive=True) == ids[1:2]
        assert store.fail([Retry(ids[2], "no route", 1.0)]) == [ids[2]]
        assert store.bury([Burial(ids[3], "rejected", "no", 1)]) == [ids[3]]
        assert store.hand_over(ids[4:5]) == ids[4:5]
        assert store.hand_over_all() == 1
        list(store.keys_in_table())
        store.keys_without_rows(["k"])
        store.wal_position()
        with store.beside_messages():
            store.worker_seen("relay", "r", "active")
        store.longest_statement(longer_than_seconds=1)
        store.worker_gone("relay", "r")


def test_a_relay_creates_its_own_slot(database: Database, roles: Roles) -> None:
    slot = f"slot_{uuid.uuid4().hex[:12]}"
    with acting_as(database, roles["relay"]) as connection:
        create_slot(connection, slot, failover=False)
        assert slot_state(Store(connection, "public"), slot) is not None


def test_a_scheduler_claims_settles_defers_buries_and_shows_its_presence(database: Database, roles: Roles) -> None:
    enqueue(database, 4)
    with acting_as(database, roles["scheduler"]) as connection:
        store = Store(connection, "public")
        store.hand_over_all()
        claimed, _ = store.claim_due("me", batch_size=10, lease_seconds=60)
        ids = [message.id for message in claimed]
        assert store.settle(ids[:1], claim="me", archive=True) == ids[:1]
        assert store.bury([Burial(ids[1], "max attempts", "no", 1)], claim="me") == ids[1:2]
        assert store.defer(ids[2:3], claim="me", cooldown_seconds=1) == ids[2:3]
        assert store.release(ids[3:], claim="me") == ids[3:]
        store.unpark_heads()
        store.worker_seen("scheduler", "s", "active")


def test_a_consumer_marks_what_it_has_processed_and_a_scheduler_prunes_it(database: Database, roles: Roles) -> None:
    with acting_as(database, roles["consumer"]) as connection, connection.transaction():
        for expected in (True, False):
            with Inbox().once(connection, "billing", "event") as fresh:
                assert fresh is expected
    with database.connect() as owner:
        owner.execute("UPDATE outbox_inbox SET processed_at = processed_at - interval '2 days'")
    with acting_as(database, roles["scheduler"]) as connection:
        assert Store(connection, "public").prune_inbox(retention_seconds=86_400, batch_size=10) == 1


@pytest.mark.parametrize("table", TABLES)
def test_an_observer_reads_every_table_and_changes_none(database: Database, roles: Roles, table: str) -> None:
    name = sql.Identifier(table)
    with acting_as(database, roles["observer"]) as connection:
        connection.execute(sql.SQL("SELECT count(*) FROM {}").format(name))
        for statement in ("DELETE FROM {}", "TRUNCATE {}", "DROP TABLE {}", "INSERT INTO {} DEFAULT VALUES"):
            refused(connection, sql.SQL(statement).format(name))


FORBIDDEN: dict[str, tuple[LiteralString, ...]] = {
    "producer": (
        "SELECT count(*) FROM outbox",
        "SELECT payload FROM outbox",
        "DELETE FROM outbox",
        "UPDATE outbox SET attempts = 0",
        "TRUNCATE outbox",
        "DELETE FROM outbox_event",
        "UPDATE outbox_event SET payload = ''",
        "UPDATE outbox_subject_key SET key = NULL",
        "DELETE FROM outbox_subject_key",
        "INSERT INTO outbox_epoch (epoch, system_identifier) VALUES (2, '')",
        "SELECT count(*) FROM outbox_dead_letter",
        "SELECT count(*) FROM outbox_archive",
        "SELECT count(*) FROM outbox_worker",
        "SELECT count(*) FROM outbox_inbox",
        "INSERT INTO outbox_migration (version, name) VALUES (99, 'x')",
        "CREATE TABLE mine (id int)",
        "ALTER TABLE outbox ADD COLUMN x int",
    ),
    "consumer": (
        "INSERT INTO outbox (event_type, routing_key, payload) VALUES ('e', 'q', '')",
        "SELECT count(*) FROM outbox",
        "SELECT count(*) FROM outbox_event",
        "DELETE FROM outbox_inbox",
        "UPDATE outbox_inbox SET consumer = 'other'",
        "TRUNCATE outbox_inbox",
        "CREATE TABLE mine (id int)",
    ),
    "relay": (
        "INSERT INTO outbox (event_type, routing_key, payload) VALUES ('e', 'q', '')",
        "TRUNCATE outbox",
        "DELETE FROM outbox_dead_letter",
        "SELECT count(*) FROM outbox_archive",
        "SELECT count(*) FROM outbox_event",
        "DELETE FROM outbox_event",
        "SELECT count(*) FROM outbox_inbox",
        "DELETE FROM outbox_migration",
        "CREATE TABLE mine (id int)",
        "DROP TABLE outbox",
        "INSERT INTO outbox_inbox (consumer, event_id) VALUES ('c', 'e')",
        "ALTER TABLE outbox DISABLE TRIGGER ALL",
        "CREATE PUBLICATION mine FOR TABLE outbox",
        "CREATE ROLE mine",
        "SELECT pg_read_file('postgresql.conf')",
    ),
    "scheduler": (
        "TRUNCATE outbox",
        "UPDATE outbox_dead_letter SET reason = 'rejected'",
        "UPDATE outbox_archive SET payload = ''",
        "INSERT INTO outbox_event (stream, version, event_id, event_type, payload) "
        "VALUES ('s', 1, gen_random_uuid(), 'e', '')",
        "UPDATE outbox_event SET payload = ''",
        "DELETE FROM outbox_event",
        "SELECT key FROM outbox_subject_key",
        "INSERT INTO outbox_inbox (consumer, event_id) VALUES ('c', 'e')",
        "INSERT INTO outbox_migration (version, name) VALUES (99, 'x')",
        "SELECT pg_create_logical_replication_slot('forbidden', 'pgoutput')",
        "DROP TABLE outbox",
        "CREATE ROLE mine",
        "COPY outbox TO PROGRAM 'true'",
    ),
    "observer": (
        "UPDATE outbox SET attempts = 0",
        "UPDATE outbox_dead_letter SET reason = 'rejected'",
        "INSERT INTO outbox (event_type, routing_key, payload) VALUES ('e', 'q', '')",
        "SELECT pg_create_logical_replication_slot('forbidden', 'pgoutput')",
        "CREATE TABLE mine (id int)",
        "SELECT key FROM outbox_subject_key",
    ),
}


@pytest.mark.parametrize(
    ("job", "statement"), [(job, statement) for job, statements in FORBIDDEN.items() for statement in statements]
)
def test_a_role_cannot_do_what_is_not_its_job(
    database: Database, roles: Roles, job: str, statement: LiteralString
) -> None:
    with database.connect() as owner:
        owner.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC")  # the default from PostgreSQL 15 on
    with acting_as(database, roles[job]) as connection:
        refused(connection, sql.SQL(statement))


def url_of(database: Database, role: str) -> str:
    """The URL of the database for this role, which is allowed to log in."""
    with database.connect() as owner:
        owner.execute(sql.SQL("ALTER ROLE {} LOGIN PASSWORD 'role'").format(sql.Identifier(role)))
    parts = urlsplit(database.dsn)
    return parts._replace(netloc=f"{role}:role@{parts.hostname}:{parts.port}").geturl()


def test_both_services_do_all_their_work_as_their_roles(stage: Stage, roles: Roles, rabbit: Broker) -> None:
    """Deliver, archive, bury, retry, hand over, maintenance: as processes that log in as their role."""
    queue = rabbit.declare_queue()
    stage.slot = f"slot_{uuid.uuid4().hex[:12]}"  # missing: the relay creates it, and hands over the rows from before
    settings: dict[str, Any] = {"archive": True, "max_attempts": 2, "backoff_seconds": 0.1}
    (by_scheduler,) = stage.insert(queue)
    relay = stage.start_relay(rabbit.url, database_url=url_of(stage.database, roles["relay"]), **settings)
    environment = stage.environment(
        rabbit.url,
        **settings,
        database_url=url_of(stage.database, roles["scheduler"]),
        archive_retention_seconds=86_400,
        dead_letter_retention_seconds=86_400,
    )
    scheduler = stage.run_service("outrider.retry_scheduler", env=environment)
    scheduler.wait_for_line("scheduler_active")
    with acting_as(stage.database, roles["producer"]) as connection:
        outbox = Outbox("", outside_transaction="allow")
        delivered = outbox.publish(connection, "order.placed", {}, routing_key=queue, aggregate=("order", 1))
        unroutable = outbox.publish(connection, "order.placed", {}, routing_key="nowhere")
        outbox.publish(connection, "order.placed", {}, routing_key=queue, deliver_after=0.1)
    stage.wait_until_empty()
    assert {str(delivered.event_id), by_scheduler} <= {each["event_id"] for each in stage.rows("outbox_archive")}
    assert [each["event_id"] for each in stage.rows("outbox_dead_letter")] == [str(unroutable.event_id)]
    assert rabbit.depth(queue) == 3
    assert {each["kind"] for each in query(stage.connection, "SELECT to_json(w) FROM outbox_worker AS w")} == {
        "relay",
        "scheduler",
    }
    for service in (relay, scheduler):
        assert service.stop() == 0
        assert "42501" not in service.output()
        assert "permission denied" not in service.output()


def refused(connection: psycopg.Connection[Any], statement: sql.SQL | sql.Composed) -> None:
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        connection.execute(statement)
