"""`outrider events`, and what doctor, set-up and status say about the log, as an operator meets it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import psycopg

from outrider import Event, EventStreams, Outbox
from outrider.embedded.postgres import Postgres, installations
from tests.fixtures.commands import run_outrider
from tests.fixtures.database import Database
from tests.fixtures.message_commands import run_cli, run_cli_json
from tests.fixtures.rows import query

STREAMS = EventStreams(Outbox("shop", context=None))


def append(dsn: str, stream: str, *types: str) -> None:
    with psycopg.connect(dsn) as connection:
        STREAMS.append(connection, stream, [Event(event_type=each, payload={}) for each in types])


def doctor_line(dsn: str, check: str) -> str:
    """The level and the line of one check."""
    document = json.loads(run_outrider("doctor", "--json", env={"OUTRIDER_DATABASE_URL": dsn}).stdout)
    (finding,) = [each for each in document["findings"] if each["check"] == check]
    return f"{finding['level']}: {finding['found']}; {finding['remedy']}"


def test_a_log_that_was_dumped_and_restored_on_another_server_is_read_on_after_a_new_epoch(
    private_postgres: Callable[..., Postgres], tmp_path: Path
) -> None:
    old, new = private_postgres(), private_postgres()
    binaries = next(iter(installations().values()))
    with psycopg.connect(old.dsn(), autocommit=True) as connection:
        connection.execute("DO $$ BEGIN FOR i IN 1..2000 LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$")
    settings = {"OUTRIDER_DATABASE_URL": old.dsn()}
    assert run_outrider("setup", "--polling-only", env=settings).returncode == 0
    append(old.dsn(), "a", "one", "two")
    assert "its order was made on this server" in doctor_line(old.dsn(), "event log")

    dump = tmp_path / "dump.sql"
    subprocess.run([binaries / "pg_dump", "-f", dump, old.dsn()], check=True)
    subprocess.run([binaries / "psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", "-f", dump, new.dsn()], check=True)
    append(new.dsn(), "a", "three")
    settings = {"OUTRIDER_DATABASE_URL": new.dsn()}
    assert doctor_line(new.dsn(), "event log").startswith("failed: restored from a server with larger")
    assert "outrider events new-epoch" in doctor_line(new.dsn(), "event log")
    assert "was written on another server: run `outrider events new-epoch`" in (
        run_outrider("setup", "--polling-only", env=settings).stdout
    )
    assert "restored from another server" in run_outrider("status", env=settings).stdout

    started = run_outrider("events", "new-epoch", "--yes", env=settings)
    assert started.stdout.splitlines() == [
        "epoch 2 has begun",
        "1 events that were appended since the log was restored are part of it",
    ]
    append(new.dsn(), "a", "four")
    assert "its order was made on this server" in doctor_line(new.dsn(), "event log")
    assert "another server" not in run_outrider("setup", "--polling-only", env=settings).stdout
    with psycopg.connect(new.dsn()) as connection:
        assert [event.event_type for event in STREAMS.read(connection)] == ["one", "two", "three", "four"]


def test_doctor_and_status_name_the_session_that_holds_readers_back(database: Database) -> None:
    with database.connect(autocommit=False, application_name="sleepy") as sleepy:
        sleepy.execute("CREATE TABLE mine ()")
        append(database.dsn, "a", "one", "two")
        settings = {"OUTRIDER_DATABASE_URL": database.dsn}
        text = run_outrider("status", env={**settings, "COLUMNS": "250"}).stdout
        assert "readers cannot see 2 events yet: process" in text
        assert "sleepy, postgres, idle in transaction" in text
        found = run_outrider("doctor", "--longest-transaction", "0", env=settings).stdout
        assert "sleepy" in found
        assert "holds readers of the log back: they cannot see 2 events" in " ".join(found.split())
        log = run_cli_json(database, "status")[0]["event_log"]
        assert (log["unreadable"], log["epoch"], log["restored"]) == (2, 1, False)
    assert run_cli_json(database, "status")[0]["event_log"]["unreadable"] == 0


def test_events_are_deleted_only_by_the_command_that_says_so_and_after_a_question(database: Database) -> None:
    append(database.dsn, "order:1", "a", "b", "c")
    append(database.dsn, "stock:1", "a", "b")
    with database.connect() as connection:
        connection.execute("UPDATE outbox_event SET created_at = created_at - interval '2 days'")
        append(database.dsn, "order:1", "d")
        arguments = ("events", "delete", "--older-than", "1d")
        assert "asks for confirmation" in run_cli(database, *arguments, status=2)
        assert run_cli(database, *arguments, "--dry-run").strip() == "would delete 4"
        assert run_cli(database, *arguments, "--category", "order", "--yes").strip() == "deleted 3"
        assert query(connection, "SELECT event_type FROM outbox_event ORDER BY stream, version") == ["d", "a", "b"]
        assert run_cli_json(database, *arguments, "--yes") == [{"dry_run": False, "selected": 1, "deleted": 1}]
        assert query(connection, "SELECT event_type FROM outbox_event ORDER BY stream, version") == ["d", "b"]


def test_status_and_doctor_go_on_without_migration_4_and_say_so(database: Database) -> None:
    with database.connect() as connection:
        connection.execute("DROP TABLE outbox_epoch")
        connection.execute("DELETE FROM outbox_migration WHERE version = 4")
    status = run_cli_json(database, "status")[0]
    assert (status["event_log"], status["queues"]["pending"]) == (None, 0)
    assert "migration 4" in status["unseen"]["event_log"]
    assert "migration 4" in doctor_line(database.dsn, "event log")
    assert doctor_line(database.dsn, "migrations").startswith("failed")
