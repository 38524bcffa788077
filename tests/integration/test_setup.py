"""Set-up against a real server: it is idempotent, changes nothing of others, and explains what it cannot do."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from psycopg import sql

from outrider.embedded.postgres import Postgres
from outrider.errors import SetupError
from outrider.operations.setup.apply import apply_step, create_slot, drop_slot
from outrider.operations.setup.facts import kept_rows, publication_problem, read_facts, slot_state
from outrider.operations.setup.plan import Target, as_script, plan_setup, plan_teardown
from outrider.storage.sql_files import migrations
from outrider.storage.store import Store
from tests.fixtures.database import Database, create_database, drop_database
from tests.fixtures.servers import SharedPostgres

WEIRD = 'we"ird %s'
NOTHING_TO_DO = [*("already applied" for _ in migrations()), "already exists", "already exists"]


@pytest.fixture
def empty_database(postgres_server: SharedPostgres) -> Iterator[Database]:
    fresh = create_database(postgres_server.url)
    yield fresh
    drop_database(fresh)


@pytest.fixture
def target() -> Target:
    """All databases of a server share the slot names, so every test has its own."""
    return Target(schema="public", publication="outbox", slot=f"slot_{uuid.uuid4().hex[:12]}")


def set_up(store: Store, target: Target) -> dict[str, str]:
    """Run the plan; returns the outcome of each step."""
    facts = read_facts(store, publication=target.publication, slot=target.slot)
    return {step.what: apply_step(store, step) for step in plan_setup(facts, target, migrations())}


def tear_down(store: Store, target: Target, *, drop_tables: bool = False) -> dict[str, str]:
    facts = read_facts(store, publication=target.publication, slot=target.slot)
    return {step.what: apply_step(store, step) for step in plan_teardown(facts, target, drop_tables=drop_tables)}


def enqueue(connection: psycopg.Connection[Any], count: int = 1) -> None:
    connection.execute(
        "INSERT INTO outbox (event_type, routing_key, payload) SELECT 'e', 'q', '' FROM generate_series(1, %s)",
        [count],
    )


def test_set_up_creates_everything_and_the_second_time_nothing(empty_database: Database, target: Target) -> None:
    with empty_database.connect() as connection:
        store = Store(connection, "public")
        first = set_up(store, target)
        assert first[f"publication {target.publication}"] == first[f"slot {target.slot}"] == "created"
        before = slot_state(store, target.slot)
        second = set_up(store, target)
        assert list(second.values())[1:] == NOTHING_TO_DO
        assert publication_problem(store, "public", target.publication) is None
        after = slot_state(store, target.slot)
    assert before is not None
    assert after is not None
    assert after.restart_lsn == before.restart_lsn
    assert (after.plugin, after.database, after.active, after.lost) == ("pgoutput", empty_database.name, False, None)
    assert after.retained_bytes is not None


def test_a_schema_with_quotes_and_percent_signs_is_set_up_and_torn_down(
    empty_database: Database, target: Target
) -> None:
    target = Target(schema=WEIRD, publication=WEIRD, slot=target.slot, handover_seconds=5.5)
    with empty_database.connect() as connection:
        store = Store(connection, WEIRD)
        set_up(store, target)
        assert set(set_up(store, target).values()) == {*NOTHING_TO_DO, "already set", "supported (wal_level logical)"}
        assert publication_problem(store, WEIRD, WEIRD) is None
        assert set(tear_down(store, target, drop_tables=True).values()) == {"dropped"}
        facts = read_facts(store, publication=WEIRD, slot=target.slot)
    assert (facts.tables, facts.publication, facts.slot) == (frozenset(), None, None)


def test_rows_from_before_the_slot_are_handed_over(database: Database, target: Target) -> None:
    with database.connect() as connection:
        enqueue(connection, 3)
        outcomes = set_up(Store(connection, "public"), target)
        assert outcomes["rows from before the slot"] == "3 handed over to the scheduler"
        enqueue(connection)
        owners = connection.execute("SELECT owner FROM outbox ORDER BY id").fetchall()
    assert owners == [("scheduler",)] * 3 + [("relay",)]


def test_the_printed_sql_does_what_set_up_would_do(empty_database: Database, target: Target) -> None:
    with empty_database.connect() as connection:
        store = Store(connection, "public")
        facts = read_facts(store, publication=target.publication, slot=target.slot)
        printed = as_script(plan_setup(facts, target, migrations()))
        assert read_facts(store, publication=target.publication, slot=target.slot) == facts
        for statement in printed.split(";\n"):
            connection.execute(statement)
        outcomes = set_up(store, target)
    assert list(outcomes.values())[1:] == NOTHING_TO_DO


@pytest.mark.parametrize("seconds", [0.0, 2.5, 90.0, 86400.0])
def test_the_handover_time_is_the_default_of_new_rows(database: Database, target: Target, seconds: float) -> None:
    target = Target(schema="public", publication="p", slot=target.slot, handover_seconds=seconds, polling_only=True)
    with database.connect() as connection:
        store = Store(connection, "public")
        assert set_up(store, target)[f"handover after {seconds:g} s"] == "set"
        assert set_up(store, target)[f"handover after {seconds:g} s"] == "already set"
        enqueue(connection)
        row = connection.execute(
            "SELECT extract(epoch FROM next_attempt_at - created_at)::float8 FROM outbox"
        ).fetchone()
    assert row is not None
    assert row[0] == pytest.approx(seconds, abs=0.05)


def test_polling_only_creates_no_publication_and_no_slot(empty_database: Database, target: Target) -> None:
    target = Target(schema="public", publication="outbox", slot=target.slot, polling_only=True)
    with empty_database.connect() as connection:
        store = Store(connection, "public")
        set_up(store, target)
        facts = read_facts(store, publication=target.publication, slot=target.slot)
    assert facts.applied
    assert (facts.publication, facts.slot) == (None, None)


def test_two_set_ups_at_once_do_no_harm(empty_database: Database, target: Target) -> None:
    errors: list[Exception] = []
    barrier = threading.Barrier(4)

    def run() -> None:
        try:
            with empty_database.connect() as connection:
                store = Store(connection, "public")
                facts = read_facts(store, publication=target.publication, slot=target.slot)
                plan = plan_setup(facts, target, migrations())
                barrier.wait(10)
                for step in plan:
                    apply_step(store, step)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    with empty_database.connect() as connection:
        assert list(set_up(Store(connection, "public"), target).values())[1:] == NOTHING_TO_DO


def test_a_publication_of_another_outbox_is_not_touched(database: Database, target: Target) -> None:
    with database.connect() as connection:
        set_up(Store(connection, "public"), target)
        other = Target(schema="other", publication=target.publication, slot=target.slot)
        with pytest.raises(SetupError, match=r"publishes public\.outbox, not only other\.outbox: choose another name"):
            set_up(Store(connection, "other"), other)
        assert publication_problem(Store(connection, "public"), "public", target.publication) is None


@pytest.mark.parametrize(
    ("publication", "problem"),
    [
        ("FOR ALL TABLES", "is for all tables"),
        ("FOR TABLE outbox, outbox_event", "publishes public.outbox, public.outbox_event"),
        ("FOR TABLE outbox", "must publish inserts and nothing else"),
        ("", "publishes no table"),
    ],
)
def test_a_publication_of_the_wrong_shape_is_noticed(database: Database, publication: str, problem: str) -> None:
    with database.connect() as connection:
        connection.execute(sql.SQL("CREATE PUBLICATION outbox " + publication))
        assert problem in (publication_problem(Store(connection, "public"), "public", "outbox") or "")


def test_a_column_list_is_noticed_where_there_are_column_lists(database: Database) -> None:
    with database.connect() as connection:
        if connection.info.server_version < 150000:
            pytest.skip("PostgreSQL 14 has no column lists")
        connection.execute("CREATE PUBLICATION outbox FOR TABLE outbox (id, payload) WITH (publish = 'insert')")
        problem = publication_problem(Store(connection, "public"), "public", "outbox")
    assert problem == "publication outbox publishes only some columns of public.outbox"


def test_a_row_filter_makes_a_shard_and_is_kept(database: Database, target: Target) -> None:
    with database.connect() as connection:
        if connection.info.server_version < 150000:
            pytest.skip("PostgreSQL 14 has no row filters")
        connection.execute("CREATE PUBLICATION outbox FOR TABLE outbox WHERE (id % 2 = 0)")
        outcomes = set_up(Store(connection, "public"), target)
        kept = connection.execute("SELECT rowfilter FROM pg_publication_tables WHERE pubname = 'outbox'").fetchone()
    assert outcomes["publication outbox"] == "changed to publish inserts only"
    assert kept is not None
    assert kept[0] is not None


def test_a_publication_without_its_table_is_repaired(database: Database, target: Target) -> None:
    with database.connect() as connection:
        connection.execute("CREATE PUBLICATION outbox WITH (publish = 'insert')")
        store = Store(connection, "public")
        assert set_up(store, target)["publication outbox"] == "published no table; outbox table added"
        assert publication_problem(store, "public", "outbox") is None


def test_a_slot_of_another_database_is_not_touched(
    database: Database, empty_database: Database, target: Target
) -> None:
    with empty_database.connect() as elsewhere:
        create_slot(elsewhere, target.slot, failover=False)
        with database.connect() as connection:
            store = Store(connection, "public")
            with pytest.raises(SetupError, match=f"belongs to database {empty_database.name}: choose another name"):
                set_up(store, target)
            assert tear_down(store, target)[f"slot {target.slot}"].startswith("kept: ")
        assert slot_state(Store(elsewhere, "public"), target.slot) is not None


def test_another_table_called_outbox_is_not_used_or_dropped(empty_database: Database, target: Target) -> None:
    with empty_database.connect() as connection:
        connection.execute("CREATE TABLE outbox (letter text)")
        store = Store(connection, "public")
        with pytest.raises(SetupError, match=r"other tables with our names \(outbox\): choose another with --schema"):
            set_up(store, target)
        with pytest.raises(SetupError, match="nothing was dropped"):
            tear_down(store, target, drop_tables=True)


def test_teardown_keeps_tables_and_their_rows(database: Database, target: Target) -> None:
    with database.connect() as connection:
        store = Store(connection, "public")
        set_up(store, target)
        enqueue(connection, 2)
        assert list(tear_down(store, target).values()) == ["dropped", "dropped", "kept"]
        assert list(tear_down(store, target).values()) == ["does not exist", "does not exist", "kept"]
        assert kept_rows(store)["undelivered messages"] == 2


def test_a_slot_is_created_and_dropped_by_name(database: Database, target: Target) -> None:
    with database.connect() as connection:
        store = Store(connection, "public")
        assert slot_state(store, target.slot) is None
        create_slot(connection, target.slot, failover=False)
        with pytest.raises(SetupError) as error:
            create_slot(connection, target.slot, failover=False)
        assert error.value.sqlstate == "42710"
        drop_slot(connection, target.slot)
        drop_slot(connection, target.slot)
        assert slot_state(store, target.slot) is None


def test_a_failover_slot_is_one_where_the_server_can(database: Database, target: Target) -> None:
    with database.connect() as connection:
        if connection.info.server_version < 170000:
            with pytest.raises(SetupError, match="need PostgreSQL 17"):
                create_slot(connection, target.slot, failover=True)
        else:
            create_slot(connection, target.slot, failover=True)
            state = slot_state(Store(connection, "public"), target.slot)
            assert state is not None
            assert state.failover


def test_a_lost_slot_is_reported_and_created_again(private_postgres: Callable[..., Postgres], target: Target) -> None:
    server = private_postgres(
        settings={"max_slot_wal_keep_size": "1MB", "min_wal_size": "32MB", "max_wal_size": "32MB"}
    )
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        store = Store(connection, "public")
        set_up(store, target)
        for _ in range(4):
            connection.execute("SELECT pg_logical_emit_message(false, 'filler', 'x')")
            connection.execute("SELECT pg_switch_wal()")
        connection.execute("CHECKPOINT")
        state = slot_state(store, target.slot)
        assert state is not None
        assert state.lost
        enqueue(connection)
        facts = read_facts(store, publication=target.publication, slot=target.slot)
        steps = [(step.what, apply_step(store, step)) for step in plan_setup(facts, target, migrations())]
        state = slot_state(store, target.slot)
    assert (f"slot {target.slot}", "created") in steps
    assert ("rows from before the slot", "1 handed over to the scheduler") in steps
    assert state is not None
    assert state.lost is None


def test_every_supported_server_here_can_be_set_up(private_postgres: Callable[..., Postgres], target: Target) -> None:
    from outrider.embedded.postgres import available_versions

    for version in available_versions():
        with psycopg.connect(private_postgres(version=version).dsn(), autocommit=True) as connection:
            store = Store(connection, "public")
            set_up(store, target)
            assert list(set_up(store, target).values())[1:] == NOTHING_TO_DO
