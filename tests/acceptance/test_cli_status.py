"""`outrider status`: tables, JSON, and --watch until Ctrl-C."""

from __future__ import annotations

import json
import signal
import uuid
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import pytest
from psycopg import sql

from tests.fixtures.commands import run_outrider
from tests.fixtures.proxy import FaultProxy
from tests.fixtures.rows import insert_rows
from tests.fixtures.servers import address_of
from tests.fixtures.stage import Stage
from tests.fixtures.waiting import wait_for


def environment(stage: Stage) -> dict[str, str]:
    return {"OUTRIDER_DATABASE_URL": stage.database.dsn, "OUTRIDER_SLOT": stage.slot}


def as_json(env: dict[str, str]) -> dict[str, Any]:
    run = run_outrider("status", "--json", env=env)
    assert run.returncode == 0, run.stderr
    document = json.loads(run.stdout)
    assert isinstance(document, dict)
    return document


def fill(stage: Stage) -> None:
    """Two rows in each state (one of them buried), a running and a stale worker."""
    connection = stage.connection
    insert_rows(connection, 2, due_in="1 hour")
    insert_rows(connection, 2, owner="scheduler")
    insert_rows(connection, 2, owner="scheduler", due_in="1 hour")
    insert_rows(connection, 2, owner="scheduler", due_in="1 hour", claimed_by="s/1")
    insert_rows(connection, 2, owner="scheduler", due_in="1 hour", attempts=1, ordering_key="k")
    insert_rows(connection, 2, owner="scheduler", due_in="infinity", ordering_key="k")
    connection.execute(
        "WITH gone AS (DELETE FROM outbox WHERE id IN (SELECT min(id) FROM outbox) RETURNING *) "
        "INSERT INTO outbox_dead_letter SELECT id, event_id, schema_version, event_type, aggregate_type, aggregate_id, "
        "ordering_key, exchange, routing_key, payload, content_type, content_encoding, headers, properties, "
        "declarations, context, dedup_key, created_at, expires_at, attempts, last_error, last_failed_at, 'rejected' "
        "FROM gone"
    )
    connection.execute(
        "INSERT INTO outbox_worker (kind, name, role, version, host, pid, last_seen_at) VALUES "
        "('relay', 'relay-1', 'active', '0.1', 'alpha', 4711, now()), "
        "('scheduler', 'gone', 'active', '0.1', 'beta', 4712, now() - interval '1 hour')"
    )


def test_the_state_is_shown_as_json_and_as_tables(stage: Stage) -> None:
    fill(stage)
    document = as_json(environment(stage))
    ages = {name: document["queues"].pop(name) for name in ("oldest_seconds", "overdue_seconds")}
    assert all(age > 0 for age in ages.values())
    assert document["queues"] == {
        "pending": 11,
        "due": 2,
        "with_relay": 1,
        "claimed": 2,
        "delayed": 2,
        "backing_off": 2,
        "parked": 2,
        "parked_keys": 1,
        "retrying": 2,
        "unsupported": 0,
    }
    parts = ("due", "with_relay", "claimed", "delayed", "backing_off", "parked")
    assert sum(document["queues"][part] for part in parts) == document["queues"]["pending"]
    assert document["dead"] == {"total": 1, "by_reason": {"rejected": 1}}
    assert document["archive"] == {"total": 0}
    assert [(worker["name"], worker["role"], worker["stale"]) for worker in document["workers"]] == [
        ("relay-1", "active", False),
        ("gone", "active", True),
    ]
    slot = document["slot"]
    assert (slot["name"], slot["active"], slot["wal_status"], slot["lost"]) == (stage.slot, False, "reserved", None)
    assert slot["retained_bytes"] >= slot["lag_bytes"] > 0
    assert document["publication"] == {"name": "outbox", "tables": ["public.outbox"], "problem": None}
    assert (document["unseen"], document["schema"], document["database"]) == ({}, "public", stage.database.name)

    shown = run_outrider("status", env={**environment(stage), "COLUMNS": "160"})
    assert shown.returncode == 0, shown.stderr
    text = " ".join(shown.stdout.replace("│", " ").split())
    for words in (
        "pending 11",
        "due 2",
        "parked 2 of 1 keys",
        "dead 1 (1 rejected)",
        "relay relay-1 active alpha 4711 0.1",
        "60 min ago, stale",
        f"slot {stage.slot}: no relay is reading it",
        "publication outbox of public.outbox",
    ):
        assert words in text, shown.stdout


def test_a_missing_slot_is_null_and_what_a_role_may_not_read_is_named(bare_stage: Stage) -> None:
    clerk = sql.Identifier(name := f"clerk_{uuid.uuid4().hex[:8]}")
    connection = bare_stage.connection
    document = as_json(environment(bare_stage))
    assert (document["slot"], document["publication"], document["unseen"]) == (None, None, {})

    connection.execute(sql.SQL("CREATE ROLE {} LOGIN").format(clerk))
    connection.execute(sql.SQL("GRANT SELECT ON outbox TO {}").format(clerk))
    connection.execute("REVOKE SELECT ON pg_replication_slots FROM PUBLIC")
    try:
        parts = urlsplit(bare_stage.database.dsn)
        dsn = parts._replace(netloc=f"{name}@{parts.hostname}:{parts.port}").geturl()
        document = as_json({"OUTRIDER_DATABASE_URL": dsn})
        assert document["unseen"].keys() == {"dead", "archive", "event_log", "workers", "slot"}
        assert "permission denied for view pg_replication_slots" in document["unseen"]["slot"]
        assert document["queues"]["pending"] == 0
        shown = run_outrider("status", env={"OUTRIDER_DATABASE_URL": dsn, "COLUMNS": "160"})
        assert shown.returncode == 0
        assert "cannot read it: PostgreSQL: permission denied for table outbox_archive" in shown.stdout
        connection.execute(sql.SQL("REVOKE SELECT ON outbox FROM {}").format(clerk))
        blind = run_outrider("status", env={"OUTRIDER_DATABASE_URL": dsn})
        assert blind.returncode == 1
        assert "this role may read neither messages nor dead letters" in blind.stderr
    finally:
        connection.execute(sql.SQL("DROP OWNED BY {}").format(clerk))
        connection.execute(sql.SQL("DROP ROLE {}").format(clerk))


def test_watch_continues_after_the_database_was_lost_and_ends_with_status_0_on_ctrl_c(
    stage: Stage, fault_proxy: Callable[[str, int], FaultProxy]
) -> None:
    proxy = fault_proxy(*address_of(stage.database.dsn))
    settings = {**environment(stage), "OUTRIDER_DATABASE_URL": proxy.through(stage.database.dsn)}
    watch = stage.run_service("outrider", "status", "--watch", "0.2", "--json", env=settings)
    wait_for(lambda: len(watch.events()) >= 2, deadline_seconds=60)
    proxy.refuse()
    proxy.cut()
    wait_for(lambda: "error" in watch.events()[-1], deadline_seconds=60)
    proxy.heal()
    wait_for(lambda: "queues" in watch.events()[-1], deadline_seconds=60)
    watch.signal(signal.SIGINT)
    assert watch.wait() == 0
    assert "Traceback" not in watch.output()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--schema", "nowhere"), "there is no outbox in the schema 'nowhere' of this database: run `outrider setup`"),
        (("--database-url", "postgresql://shop:s3cret@127.0.0.1:1/shop", "--watch"), "Connection refused"),
    ],
)
def test_an_error_is_one_line_without_the_password(bare_stage: Stage, arguments: tuple[str, ...], words: str) -> None:
    run = run_outrider("status", *arguments, env={"OUTRIDER_DATABASE_URL": bare_stage.database.dsn})
    assert run.returncode == 1
    (line,) = run.stderr.splitlines()
    assert words in line
    assert "s3cret" not in line
