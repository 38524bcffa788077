"""`outrider setup` and `outrider teardown`: the exit status, one line per step, one line per error."""

from __future__ import annotations

import re
import subprocess
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, LiteralString
from urllib.parse import quote

import psycopg
import pytest
from psycopg import sql

from outrider.embedded.postgres import Postgres, installations
from outrider.operations.setup.facts import slot_state
from outrider.producer import Outbox
from outrider.storage.store import Store
from tests.fixtures.broker import Broker
from tests.fixtures.commands import run_outrider
from tests.fixtures.database import Database, create_database, drop_database
from tests.fixtures.servers import SharedPostgres
from tests.fixtures.services import RunService
from tests.fixtures.waiting import wait_for

WEIRD = 'we"ird %s'


@pytest.fixture
def empty_database(postgres_server: SharedPostgres) -> Iterator[Database]:
    fresh = create_database(postgres_server.url)
    yield fresh
    drop_database(fresh)


@pytest.fixture
def slot() -> str:
    return f"slot_{uuid.uuid4().hex[:12]}"


@contextmanager
def role(database: Database, *grants: LiteralString, attributes: LiteralString = "") -> Iterator[str]:
    """The address of the database for a new role with only these grants."""
    name = sql.Identifier(f"clerk_{uuid.uuid4().hex[:8]}")
    with database.connect() as connection:
        connection.execute(sql.SQL("CREATE ROLE {} " + attributes).format(name))
        for grant in grants:
            connection.execute(sql.SQL(grant).format(role=name, database=sql.Identifier(database.name)))
        option = quote(f"-c role={name.as_string(connection)}".replace('"', ""))
        yield f"{database.dsn}{'&' if '?' in database.dsn else '?'}options={option}"
        connection.execute(sql.SQL("DROP OWNED BY {}").format(name))
        connection.execute(sql.SQL("DROP ROLE {}").format(name))


def catalog(connection: psycopg.Connection[Any]) -> list[Any]:
    """The objects that a dry run must not change."""
    return connection.execute(
        "SELECT oid::text FROM pg_class WHERE relnamespace = 'public'::regnamespace"
        " UNION ALL SELECT pubname FROM pg_publication"
        " UNION ALL SELECT slot_name FROM pg_replication_slots WHERE database = current_database() ORDER BY 1"
    ).fetchall()


def error_of(run: subprocess.CompletedProcess[str], status: int = 1) -> str:
    """The one line on standard error."""
    assert run.returncode == status, run.stderr
    assert "Traceback" not in run.stderr
    (line,) = run.stderr.splitlines()
    assert line.startswith("outrider: error: ")
    return line


def test_set_up_prints_what_it_did_and_the_second_time_that_everything_exists(
    empty_database: Database, slot: str
) -> None:
    first = run_outrider("setup", "--slot", slot, env={"OUTRIDER_DATABASE_URL": empty_database.dsn})
    assert first.returncode == 0, first.stderr
    assert first.stdout.splitlines()[1:] == [
        "migration 1 (initial) of the schema public: applied",
        "migration 2 (parked rows need a key) of the schema public: applied",
        "migration 3 (failed rows) of the schema public: applied",
        "migration 4 (event order) of the schema public: applied",
        "publication outbox: created",
        f"slot {slot}: created",
        "rows from before the slot: none",
    ]
    second = run_outrider("setup", "--slot", slot, env={"OUTRIDER_DATABASE_URL": empty_database.dsn})
    assert second.returncode == 0
    assert re.fullmatch(r"(?:PostgreSQL \d+: .*|.*: already (?:applied|exists)|\n)+", second.stdout)


def test_a_dry_run_changes_nothing_and_prints_what_psql_can_run(empty_database: Database, slot: str) -> None:
    arguments = ("setup", "--schema", WEIRD, "--publication", WEIRD, "--slot", slot, "--handover-after", "7")
    with empty_database.connect() as connection:
        before = catalog(connection)
        printed = run_outrider(*arguments, "--dry-run", env={"OUTRIDER_DATABASE_URL": empty_database.dsn})
        assert printed.returncode == 0, printed.stderr
        assert catalog(connection) == before
    psql = next(iter(installations().values())) / "psql"
    ran = subprocess.run(
        [psql, "-X", "-v", "ON_ERROR_STOP=1", empty_database.dsn],
        check=False,
        input=printed.stdout,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.returncode == 0, ran.stderr
    again = run_outrider(*arguments, env={"OUTRIDER_DATABASE_URL": empty_database.dsn})
    assert again.returncode == 0, again.stderr
    assert all(
        line.endswith(("already applied", "already exists", "already set")) for line in again.stdout.splitlines()[1:]
    ), again.stdout


def test_the_wrong_wal_level_is_one_line_with_the_remedy(private_postgres: Callable[..., Postgres]) -> None:
    server = private_postgres(settings={"wal_level": "replica"})
    line = error_of(run_outrider("setup", env={"OUTRIDER_DATABASE_URL": server.dsn()}))
    assert "wal_level is replica and must be logical: run ALTER SYSTEM SET wal_level = logical and restart" in line
    polling = run_outrider("setup", "--polling-only", env={"OUTRIDER_DATABASE_URL": server.dsn()})
    assert polling.returncode == 0, polling.stderr
    assert "handover after 0 s: set" in polling.stdout


def test_a_role_that_may_not_create_is_told_what_it_needs(empty_database: Database, slot: str) -> None:
    with role(empty_database) as dsn:
        line = error_of(run_outrider("setup", "--slot", slot, env={"OUTRIDER_DATABASE_URL": dsn}))
    assert "permission denied" in line
    assert f"needed: CREATE on the database {empty_database.name}" in line


def test_a_role_that_may_not_replicate_is_told_at_the_slot(empty_database: Database, slot: str) -> None:
    with role(empty_database, "GRANT CREATE ON DATABASE {database} TO {role}") as dsn:
        arguments = ("setup", "--schema", "shop", "--slot", slot)
        run = run_outrider(*arguments, env={"OUTRIDER_DATABASE_URL": dsn})
        line = error_of(run)
        assert f"slot {slot}: " in line
        assert "needed: a role with the REPLICATION attribute" in line
        assert run.stdout.splitlines()[-1] == f"slot {slot}: failed"
        # The steps before are done, and a role that may replicate can continue.
        owner = run_outrider(*arguments, env={"OUTRIDER_DATABASE_URL": empty_database.dsn})
        assert owner.returncode == 0, owner.stderr
        assert f"slot {slot}: created" in owner.stdout


def test_a_role_that_may_create_and_replicate_can_set_up_and_tear_down(empty_database: Database, slot: str) -> None:
    grant: LiteralString = "GRANT CREATE ON DATABASE {database} TO {role}"
    with role(empty_database, grant, attributes="REPLICATION") as dsn:
        for command in (("setup",), ("teardown", "--drop-tables", "--yes")):
            run = run_outrider(*command, "--schema", "shop", "--slot", slot, env={"OUTRIDER_DATABASE_URL": dsn})
            assert run.returncode == 0, run.stderr


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("postgresql://postgres@127.0.0.1:1/shop", "port 1 failed: Connection refused"),
        ("host=127.0.0.1 port=1 password=s3cret connect_timeout=2", "Connection refused"),
    ],
)
def test_a_wrong_database_address_is_one_line(address: str, words: str) -> None:
    line = error_of(run_outrider("setup", env={"OUTRIDER_DATABASE_URL": address}))
    assert words in line
    assert "s3cret" not in line


def test_a_database_that_does_not_exist_is_one_line(postgres_server: SharedPostgres) -> None:
    missing = Database("no_such_database", postgres_server.url)
    assert 'database "no_such_database" does not exist' in error_of(
        run_outrider("setup", env={"OUTRIDER_DATABASE_URL": missing.dsn})
    )


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "database_url: must be set"),
        ({"OUTRIDER_DATABASE_URL": "mysql://root:s3cret@db"}, "database_url: not a libpq connection string"),
        (
            {"OUTRIDER_DATABASE_URL": "dbname=x", "OUTRIDER_SCHEMAS": "x"},
            "OUTRIDER_SCHEMAS: unknown setting (did you mean",
        ),
        ({"OUTRIDER_DATABASE_URL": "dbname=x", "OUTRIDER_CONFIG": "/no/such/file"}, "cannot read the settings file"),
    ],
)
def test_wrong_settings_are_one_line_and_status_2(settings: dict[str, str], words: str) -> None:
    line = error_of(run_outrider("setup", env=settings), status=2)
    assert words in line
    assert "s3cret" not in line


@pytest.mark.parametrize("arguments", [("setup", "--no-such"), ("no-such",), ("setup", "--handover-after", "soon")])
def test_wrong_usage_is_status_2_without_a_traceback(arguments: tuple[str, ...]) -> None:
    run = run_outrider(*arguments, env={"OUTRIDER_DATABASE_URL": "dbname=x"})
    assert run.returncode == 2
    assert run.stderr
    assert "Traceback" not in run.stderr
    assert run.stdout == ""


def test_teardown_drops_tables_only_on_request(empty_database: Database, slot: str) -> None:
    settings = {"OUTRIDER_DATABASE_URL": empty_database.dsn, "OUTRIDER_SLOT": slot}
    assert run_outrider("setup", env=settings).returncode == 0
    with empty_database.connect() as connection:
        connection.execute("INSERT INTO outbox (event_type, routing_key, payload) VALUES ('e', 'q', '')")
    run = run_outrider("teardown", env=settings)
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines() == [
        f"slot {slot}: dropped",
        "publication outbox: dropped",
        "tables of the schema public: kept",
    ]
    line = error_of(run_outrider("teardown", "--drop-tables", env=settings))
    assert "the tables still hold 1 undelivered messages: nothing was dropped" in line
    run = run_outrider("teardown", "--drop-tables", "--yes", env=settings)
    assert run.stdout.splitlines()[-1] == "tables of the schema public: dropped"
    with empty_database.connect() as connection:
        assert catalog(connection) == []


def test_teardown_of_empty_tables_needs_a_confirmation(empty_database: Database, slot: str) -> None:
    settings = {"OUTRIDER_DATABASE_URL": empty_database.dsn, "OUTRIDER_SLOT": slot}
    assert run_outrider("setup", "--polling-only", env=settings).returncode == 0
    run = run_outrider("teardown", "--drop-tables", env=settings)
    assert run.returncode == 2
    assert "give --yes" in run.stderr
    with empty_database.connect() as connection:
        assert catalog(connection) != []


def test_an_outbox_in_a_schema_of_any_name_delivers_and_is_not_torn_down_while_its_relay_runs(
    empty_database: Database, slot: str, redis_broker: Broker, run_service: RunService
) -> None:
    settings = {
        "OUTRIDER_DATABASE_URL": empty_database.dsn,
        "OUTRIDER_BROKER_URL": redis_broker.url,
        "OUTRIDER_SCHEMA": WEIRD,
        "OUTRIDER_PUBLICATION": "it's " + WEIRD,
        "OUTRIDER_SLOT": slot,
    }
    assert run_outrider("setup", env=settings).returncode == 0
    queue = redis_broker.declare_queue()
    relay = run_service("outrider.cdc_relay", env=settings)
    with empty_database.connect() as connection:
        store = Store(connection, WEIRD)
        wait_for(lambda: (state := slot_state(store, slot)) is not None and state.active, deadline_seconds=60)
        with connection.transaction():
            receipt = Outbox("", schema=WEIRD).publish(connection, "order.placed", {"n": 1}, routing_key=queue)
        (received,) = redis_broker.get_all(queue, 1, deadline_seconds=60)
        assert received.message_id == str(receipt.event_id)
    assert "first stop the relay that is connected to it" in error_of(run_outrider("teardown", env=settings))
    assert relay.stop() == 0
    assert run_outrider("teardown", "--drop-tables", "--yes", env=settings).returncode == 0
