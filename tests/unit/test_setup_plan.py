"""The plan of set-up: from facts to steps, without a database."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from outrider.errors import SetupError
from outrider.operations.setup.facts import Facts, PublicationShape, Server, SlotState
from outrider.operations.setup.plan import Target, as_script, plan_setup, plan_teardown
from outrider.storage.sql_files import Migration

TARGET = Target(schema="public", publication="outbox", slot="outbox")
MIGRATIONS = [Migration(1, "initial", "migrations/0001_initial.sql")]
TABLES = frozenset({"outbox", "outbox_migration"})
SERVER = Server(
    server_version=140005,
    wal_level="logical",
    max_replication_slots=10,
    max_wal_senders=10,
    in_recovery=False,
    role="owner",
    may_replicate=True,
    database="shop",
)
EMPTY = Facts(
    server=SERVER,
    tables=frozenset(),
    applied=frozenset(),
    handover_seconds=None,
    publication=None,
    slot=None,
)
SHAPE = PublicationShape(False, True, False, False, False, ["public.outbox"], False)
SLOT = SlotState(
    name="outbox",
    plugin="pgoutput",
    database="shop",
    active=False,
    active_pid=None,
    wal_status="reserved",
    restart_lsn="0/1",
    confirmed_flush_lsn="0/1",
    invalidation_reason=None,
    conflicting=False,
    failover=False,
    retained_bytes=0,
    lag_bytes=0,
    safe_wal_bytes=None,
)
COMPLETE = replace(EMPTY, tables=TABLES, applied=frozenset({1}), handover_seconds=30.0, publication=SHAPE, slot=SLOT)


def on_server(**facts: Any) -> Facts:
    """No outbox, on a server with these facts."""
    return replace(EMPTY, server=SERVER._replace(**facts))


def kinds_to_do(facts: Facts, target: Target = TARGET) -> list[str]:
    return [step.kind for step in plan_setup(facts, target, MIGRATIONS) if step.sql is not None]


def obstacle(facts: Facts, target: Target = TARGET) -> str:
    with pytest.raises(SetupError) as error:
        plan_setup(facts, target, MIGRATIONS)
    return str(error.value)


def test_an_empty_database_gets_everything_with_the_publication_before_the_slot() -> None:
    assert kinds_to_do(EMPTY) == ["migration", "publication", "slot", "hand over"]


def test_a_complete_outbox_gets_nothing_and_every_part_is_named() -> None:
    plan = plan_setup(COMPLETE, TARGET, MIGRATIONS)
    assert all(step.sql is None for step in plan)
    assert [step.kind for step in plan] == ["server", "migration", "publication", "slot"]


def test_rows_are_handed_over_only_when_the_slot_is_new() -> None:
    assert kinds_to_do(replace(COMPLETE, slot=None)) == ["slot", "hand over"]
    assert kinds_to_do(replace(COMPLETE, publication=None)) == ["publication"]


@pytest.mark.parametrize(
    "lost", [{"wal_status": "lost"}, {"invalidation_reason": "wal_removed"}, {"conflicting": True}]
)
def test_a_lost_slot_is_dropped_and_created_again(lost: dict[str, object]) -> None:
    facts = replace(COMPLETE, slot=replace(SLOT, **lost))  # type: ignore[arg-type]
    assert kinds_to_do(facts) == ["slot", "slot", "hand over"]


def test_polling_only_needs_neither_wal_level_nor_slot() -> None:
    target = replace(TARGET, polling_only=True, handover_seconds=0.0)
    assert kinds_to_do(on_server(wal_level="replica"), target) == ["migration", "handover"]


def test_the_handover_time_is_set_only_where_it_differs() -> None:
    assert kinds_to_do(COMPLETE, replace(TARGET, handover_seconds=30.0)) == []
    assert kinds_to_do(COMPLETE, replace(TARGET, handover_seconds=5.0)) == ["handover"]


def test_a_publication_that_also_publishes_deletes_is_narrowed() -> None:
    assert kinds_to_do(replace(COMPLETE, publication=SHAPE._replace(deletes=True))) == ["publication"]


def test_a_publication_without_a_table_gets_it() -> None:
    assert kinds_to_do(replace(COMPLETE, publication=SHAPE._replace(tables=[]))) == ["publication"]


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (on_server(server_version=130010), "PostgreSQL 13 is too old"),
        (on_server(in_recovery=True), "run set-up on the primary"),
        (on_server(wal_level="replica"), "ALTER SYSTEM SET wal_level = logical and restart"),
        (replace(EMPTY, tables=frozenset({"outbox"})), "choose another with --schema"),
        (replace(COMPLETE, applied=frozenset({1, 2})), "has migration 2, this version knows 1: upgrade"),
        (replace(COMPLETE, slot=replace(SLOT, database="other")), "belongs to database other"),
        (replace(COMPLETE, slot=replace(SLOT, database=None, plugin=None)), "belongs to a standby"),
        (replace(COMPLETE, slot=replace(SLOT, plugin="wal2json")), "for the plugin wal2json"),
        (replace(COMPLETE, publication=SHAPE._replace(all_tables=True)), "is for all tables"),
        (
            replace(COMPLETE, publication=SHAPE._replace(tables=["b.outbox"])),
            "publishes b.outbox, not only public.outbox",
        ),
        (replace(COMPLETE, publication=SHAPE._replace(column_list=True)), "some columns"),
    ],
)
def test_an_obstacle_is_an_error_that_names_it(facts: Facts, words: str) -> None:
    assert words in obstacle(facts)


def test_all_obstacles_are_one_error_in_one_line() -> None:
    text = obstacle(on_server(wal_level="minimal", in_recovery=True), replace(TARGET, failover=True))
    assert "wal_level is minimal" in text
    assert "standby" in text
    assert "failover slots need PostgreSQL 17" in text
    assert "\n" not in text


def test_a_failover_slot_is_created_as_one_where_the_server_can() -> None:
    plan = plan_setup(on_server(server_version=170000), replace(TARGET, failover=True), MIGRATIONS)
    assert any(step.kind == "slot" and step.sql and "failover => true" in step.sql for step in plan)


def test_teardown_drops_the_tables_only_on_request() -> None:
    assert [step.outcome for step in plan_teardown(COMPLETE, TARGET, drop_tables=False)] == [
        "dropped",
        "dropped",
        "kept",
    ]
    assert plan_teardown(COMPLETE, TARGET, drop_tables=True)[-1].outcome == "dropped"


def test_teardown_of_nothing_does_nothing() -> None:
    assert {step.outcome for step in plan_teardown(EMPTY, TARGET, drop_tables=True)} == {"does not exist"}


def test_teardown_keeps_what_belongs_to_another_outbox_or_program() -> None:
    facts = replace(
        COMPLETE, slot=replace(SLOT, database="other"), publication=SHAPE._replace(tables=["b.outbox", "public.outbox"])
    )
    plan = plan_teardown(facts, TARGET, drop_tables=False)
    assert all(step.sql is None for step in plan)
    with pytest.raises(SetupError, match="nothing was dropped"):
        plan_teardown(replace(EMPTY, tables=frozenset({"outbox"})), TARGET, drop_tables=True)


def test_a_name_with_a_line_break_cannot_leave_its_comment() -> None:
    target = replace(TARGET, schema="a\nDROP TABLE outbox", handover_seconds=1)
    plan = plan_setup(replace(COMPLETE, publication=None), target, MIGRATIONS)
    assert not any(line.startswith("DROP") for line in as_script(plan[:2]).splitlines())
