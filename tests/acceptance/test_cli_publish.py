"""`outrider publish` against a real database and broker."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from tests.fixtures.broker import Broker
from tests.fixtures.commands import COMMAND, ROOT, environment, run_outrider
from tests.fixtures.database import Database
from tests.fixtures.message_commands import run_cli
from tests.fixtures.rows import query
from tests.fixtures.stage import Stage


def test_one_message_is_written_and_its_event_id_printed(database: Database, tmp_path: Path) -> None:
    body = tmp_path / "body.json"
    body.write_text('{"n": 1.50}')
    event_id = run_cli(
        database, "publish", "order.placed", "--payload", f"@{body}", "--exchange", "shop", "--header", "a=1=2",
        "--header", "b=", "--ordering-key", "order:1", "--dedup-key", "once", "--expires", "1h",
    ).strip()  # fmt: skip
    with database.connect() as connection:
        rows = query(
            connection,
            "SELECT event_id::text, event_type, exchange, routing_key, payload, content_type, content_encoding, "
            "headers::text, ordering_key, dedup_key, owner, expires_at > clock_timestamp() FROM outbox",
        )
        assert rows == [
            (
                event_id, "order.placed", "shop", "order.placed", b'{"n": 1.50}', "application/json", "utf-8",
                '{"a": "1=2", "b": ""}', "order:1", "once", "relay", True,
            )
        ]  # fmt: skip
        line = run_cli(database, "publish", "order.placed", "--dedup-key", "once", status=1)
        assert "dedup_key is pending: nothing was written" in line

        run = subprocess.run(
            [*COMMAND, "publish", "raw", "--payload", "-", "--content-type", "image/png", "--deliver-after", "15m"],
            env=environment({"OUTRIDER_DATABASE_URL": database.dsn}),
            cwd=ROOT,
            input=b"\x89PNG\0",
            capture_output=True,
            timeout=60,
            check=True,
        )
        rows = query(
            connection,
            "SELECT event_id::text, payload, content_encoding, owner, next_attempt_at > now() + interval '14 min' "
            "FROM outbox WHERE event_type = 'raw'",
        )
        assert rows == [(run.stdout.decode().strip(), b"\x89PNG\0", "binary", "scheduler", True)]


def test_wait_reports_delivered_dead_or_still_pending(bare_stage: Stage, rabbit: Broker) -> None:
    settings = bare_stage.environment(rabbit.url, max_attempts=1, poll_seconds=0.1)
    database = {"OUTRIDER_DATABASE_URL": bare_stage.database.dsn}
    bare_stage.connection.execute(
        "ALTER TABLE outbox ALTER COLUMN next_attempt_at SET DEFAULT clock_timestamp() + interval '0 seconds'"
    )
    pending = run_outrider("publish", "ping", "--wait", "0.1", env=database)
    assert pending.returncode == 1
    assert pending.stdout.splitlines()[1:] == ["still pending"]
    bare_stage.connection.execute("DELETE FROM outbox")

    bare_stage.run_service("outrider.retry_scheduler", env=settings)
    queue = rabbit.declare_queue()
    delivered = run_outrider("publish", "ping", "--routing-key", queue, "--wait", "60", env=database)
    assert delivered.returncode == 0, delivered.stdout
    event_id, outcome = delivered.stdout.splitlines()
    assert outcome == "delivered"
    assert [message.message_id for message in rabbit.get_all(queue, 1)] == [event_id]
    dead = run_outrider("publish", "ping", "--routing-key", f"no-{queue}", "--wait", "60", "--json", env=database)
    assert dead.returncode == 1
    document = json.loads(dead.stdout)
    assert (document["outcome"], document["reason"]) == ("dead", "max attempts")
    assert document["error"].startswith("NoRoute")
