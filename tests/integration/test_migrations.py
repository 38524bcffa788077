"""Migrations of an outbox that is in use: rows that are there, and the locks that producers meet."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from outrider.storage.sql_files import migrations, script
from outrider.storage.store import Store
from tests.fixtures.commands import run_outrider
from tests.fixtures.database import Database, create_database, drop_database
from tests.fixtures.django import django_connection
from tests.fixtures.rows import insert_rows, query

PATHS = {migration.version: migration.path for migration in migrations()}
PARKED = "only a row with an ordering_key can be parked"


@pytest.fixture
def first_version(database: Database) -> Iterator[Database]:
    """An outbox at migration 1, with a row that would never be sent, and two of a key that are parked rightly."""
    old = create_database(database.server_url)
    with old.connect() as connection:
        migrate(connection, 1)
        insert_rows(connection, event_type="never sent", due_in="infinity", owner="scheduler")
        insert_rows(connection, 2, event_type="in order", due_in="infinity", owner="scheduler", ordering_key="k")
        connection.execute("UPDATE outbox SET last_failed_at = now() WHERE ordering_key = 'k'")
    yield old
    drop_database(old)


def migrate(connection: psycopg.Connection[Any], version: int) -> None:
    with connection.transaction():
        connection.execute(script(PATHS[version], schema="public"))


def due(database: Database) -> list[str]:
    with database.connect() as connection:
        return query(connection, "SELECT event_type FROM outbox WHERE next_attempt_at <= clock_timestamp()")


def test_a_row_without_a_key_cannot_be_parked_and_one_that_was_is_due_after_outrider_setup(
    first_version: Database,
) -> None:
    settings = {"OUTRIDER_DATABASE_URL": first_version.dsn}
    made = run_outrider("setup", "--polling-only", env=settings)
    assert made.returncode == 0, made.stderr
    assert due(first_version) == ["never sent"]
    with first_version.connect() as connection:
        with pytest.raises(psycopg.errors.CheckViolation) as refused:
            insert_rows(connection, due_in="infinity")
        assert refused.value.diag.constraint_name == PARKED
        assert query(connection, "SELECT convalidated FROM pg_constraint WHERE conname = %s", PARKED) == [True]
    assert "ok       indexes: " in run_outrider("doctor", env=settings).stdout


def test_django_migrates_an_outbox_that_is_in_use(first_version: Database) -> None:
    with django_connection(first_version.dsn):
        from django.core.management import call_command

        call_command("migrate", "outrider", "0001", verbosity=0)
        call_command("migrate", "outrider", verbosity=0)
        assert due(first_version) == ["never sent"]
        call_command("migrate", "outrider", "0001", verbosity=0)
        call_command("migrate", "outrider", verbosity=0)
    with first_version.connect() as connection:
        assert query(connection, "SELECT version FROM outbox_migration ORDER BY 1") == sorted(PATHS)


def test_only_the_migration_that_reads_no_row_takes_a_lock_that_readers_meet(first_version: Database) -> None:
    with first_version.connect() as connection, first_version.connect() as observer:
        for version, strongest in ((2, {"AccessExclusiveLock"}), (3, {"ShareLock", "ShareUpdateExclusiveLock"})):
            with connection.transaction():
                connection.execute(script(PATHS[version], schema="public"))
                held = query(
                    observer,
                    "SELECT DISTINCT mode FROM pg_locks WHERE pid = %s AND relation = 'outbox'::regclass",
                    connection.info.backend_pid,
                )
            assert set(held) & {"AccessExclusiveLock", "ExclusiveLock", "ShareLock", "ShareUpdateExclusiveLock"} == (
                strongest
            )


def test_a_migration_gives_up_when_a_transaction_holds_the_table_and_leaves_no_trace(first_version: Database) -> None:
    settings = {"OUTRIDER_DATABASE_URL": first_version.dsn}
    with first_version.connect() as producer:
        with producer.transaction():
            insert_rows(producer)
            made = run_outrider("setup", "--polling-only", env=settings)
        assert made.returncode == 1
        assert "lock timeout" in made.stderr
        assert "end it, and run this again" in made.stderr
        assert query(producer, "SELECT version FROM outbox_migration") == [1]
    assert run_outrider("setup", "--polling-only", env=settings).returncode == 0


def test_a_migration_leaves_the_lock_timeout_of_its_transaction_as_it_was(first_version: Database) -> None:
    with first_version.connect() as connection:
        for version in (2, 3):
            with connection.transaction():
                connection.execute("SET LOCAL lock_timeout = '7s'")
                connection.execute(script(PATHS[version], schema="public"))
                assert query(connection, "SHOW lock_timeout") == ["7s"]


def test_an_index_that_was_created_before_without_a_lock_is_taken(first_version: Database) -> None:
    with first_version.connect() as connection:
        migrate(connection, 2)
        connection.execute(
            "CREATE INDEX CONCURRENTLY outbox_failed ON outbox (last_failed_at, id) WHERE last_failed_at IS NOT NULL"
        )
        migrate(connection, 3)


def test_failures_are_watched_by_an_index_and_only_those_that_are_asked_for_are_read(database: Database) -> None:
    with database.connect() as connection:
        connection.execute("ALTER TABLE outbox SET (autovacuum_enabled = off)")
        insert_rows(connection, 20_000, due_in="1 hour", last_error="no")
        connection.execute("UPDATE outbox SET last_failed_at = now() - id * interval '1 second' WHERE id % 2 = 0")
        connection.execute("ANALYZE outbox")
        parameters = {"since": "2000-01-01", "after": 0, "lag_seconds": 2, "batch_size": 100}
        statement = "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + Store(connection, "public").queries["watch_failed"]
        row = connection.execute(statement, parameters).fetchone()
    assert row is not None
    plan = row[0][0]["Plan"]
    assert "outbox_failed" in str(plan)
    assert "Sort" not in str(plan)
    assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] < 300
