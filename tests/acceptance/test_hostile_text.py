"""
Stored text, the broker's text and names that hold control characters and text direction marks: through every command,
every log and every endpoint. None of these characters reaches a terminal.
"""

from __future__ import annotations

import io
import json
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from psycopg import sql

from outrider.cli import main, outrider
from outrider.consumer.topology import dead_letter_queue
from outrider.embedded.process import free_port
from outrider.storage.decision import Burial
from outrider.storage.store import Store
from tests.fixtures.broker import Broker
from tests.fixtures.commands import ROOT, environment
from tests.fixtures.django import Site
from tests.fixtures.rows import insert_rows
from tests.fixtures.services import RunService
from tests.fixtures.stage import Stage
from tests.fixtures.waiting import wait_for

HOSTILE = "\x1b[2J\x1b]0;title\x07\x08\r\nforged: line\x7f\x9b31m\u202eevil\u2066\u200f\ufeff[red]x[/red][/]"
ESCAPED = r"\x1b[2J"
COMMANDS = {
    "dead",
    "demo",
    "dlq",
    "doctor",
    "events",
    "forget",
    "pending",
    "publish",
    "replay",
    "setup",
    "status",
    "teardown",
    "worker",
}
"""All subcommands: a new one must be added to the tests below. The demo shows only its own text."""

CONSUMERS = """
import os
from outrider.consumer import Reject, consume

@consume(queue=os.environ["QUEUE"])
def handle(body: dict, event_id: str) -> None:
    raise Reject(body["text"])

@consume(queue=os.environ["QUEUE"] + ".crash", retry_delays=("1h",))
def crash(body: dict) -> None:
    raise ValueError(body["text"])
"""


def unprintable(text: str) -> list[str]:
    """What must not reach a terminal: everything but printable characters and line feeds."""
    return [char for char in text if char != "\n" and not char.isprintable()]


def assert_clean(text: str, *, escaped: bool = False) -> None:
    assert unprintable(text) == [], repr(text)
    assert "\nforged: line" not in text
    if escaped:
        assert ESCAPED in text.replace("\\\\", "\\").replace("u001b", "x1b"), text


class Terminal:
    """Runs commands; nothing that they print, on either stream, may hold a character that a terminal obeys."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self.env = env
        self.used: set[str] = set()

    def run(self, *arguments: str, status: int = 0, shows: bool = True) -> str:
        """
        Run `outrider ARGUMENTS` and return its standard output. `shows`: the hostile text is in the output, escaped.

        In this process, through the entry point of the installed command: a new process takes a second to start.
        """
        self.used.add(arguments[0])
        with (
            patch.dict(os.environ, environment(self.env), clear=True),
            patch.object(sys, "argv", ["outrider", *arguments]),
            patch.object(sys, "stdin", io.StringIO()),
            redirect_stdout(io.StringIO()) as output,
            redirect_stderr(io.StringIO()) as errors,
        ):
            try:
                main()
                returned: object = 0
            except SystemExit as end:
                returned = end.code or 0
        assert returned == status, (arguments, output.getvalue(), errors.getvalue())
        assert_clean(output.getvalue() + errors.getvalue(), escaped=shows)
        return output.getvalue()


def columns(queue: str) -> dict[str, Any]:
    """A row with hostile text in every column that can hold it."""
    return {
        "event_type": HOSTILE,
        "aggregate_type": HOSTILE,
        "aggregate_id": HOSTILE,
        "ordering_key": HOSTILE + "{n}",
        "exchange": HOSTILE,
        "routing_key": queue + HOSTILE,
        "payload": json.dumps({"text": HOSTILE}, ensure_ascii=False).encode(),
        "content_type": "application/" + HOSTILE,
        "content_encoding": HOSTILE,
        "headers": json.dumps({HOSTILE: HOSTILE}, ensure_ascii=True),
        "properties": json.dumps({HOSTILE: HOSTILE}, ensure_ascii=True),
        "declarations": json.dumps([HOSTILE]),
        "context": json.dumps({HOSTILE: HOSTILE, "tenant": HOSTILE}),
        "dedup_key": HOSTILE + "{n}",
        "claimed_by": HOSTILE,
        "last_error": HOSTILE,
    }


@pytest.fixture
def hostile(stage: Stage, rabbit: Broker) -> Stage:
    """Pending messages, dead letters, archive, events and presence with hostile text; and a hostile publication."""
    connection = stage.connection
    row = columns(rabbit.prefix)
    insert_rows(connection, 3, due_in="1 hour", owner="scheduler", **row)
    dying = insert_rows(connection, 3, due_in="1 hour", **{**row, "dedup_key": "d{n}", "claimed_by": None})
    store = Store(connection, "public")
    store.bury([Burial(each, "rejected", HOSTILE, 1) for each in dying])
    connection.execute("UPDATE outbox_dead_letter SET dedup_key = %s WHERE id = %s", [HOSTILE + "0", dying[0]])
    delivered = insert_rows(connection, 2, **{**row, "dedup_key": None, "claimed_by": None})
    store.settle(delivered, archive=True)
    connection.execute(
        "INSERT INTO outbox_event (stream, version, event_id, event_type, payload) "
        "VALUES (%s, 1, gen_random_uuid(), %s, '')",
        [HOSTILE, HOSTILE],
    )
    connection.execute(
        "INSERT INTO outbox_worker (kind, role, name, version, host, pid) "
        "VALUES ('scheduler', 'active', %s, %s, %s, 1)",
        [HOSTILE, HOSTILE, HOSTILE],
    )
    connection.execute(sql.SQL("CREATE TABLE {} ()").format(sql.Identifier(HOSTILE)))
    connection.execute("CREATE PUBLICATION foreign_one")
    connection.execute(sql.SQL("ALTER PUBLICATION foreign_one ADD TABLE {}").format(sql.Identifier(HOSTILE)))
    return stage


def test_no_command_prints_what_a_terminal_obeys(hostile: Stage, rabbit: Broker) -> None:
    assert set(outrider.list_commands(None)) == COMMANDS  # type: ignore[arg-type]
    terminal = Terminal(hostile.environment(rabbit.url))
    run = terminal.run
    pending, letter = hostile.rows()[0]["id"], hostile.rows("outbox_dead_letter")[-1]["id"]
    for json_flag in ([], ["--json"]):
        run("status", *json_flag)
        run("pending", "list", *json_flag)
        run("pending", "show", str(pending), "--payload", *json_flag)
        run("pending", "show", str(pending), "--redactor", "tests.acceptance.test_hostile_text.redact", *json_flag)
        run("dead", "list", *json_flag)
        run("dead", "list", "--grouped", *json_flag)
        run("dead", "show", str(letter), "--payload", *json_flag)
        run("dead", "replay", "--all", "--dry-run", *json_flag)
        run("dead", "discard", "--all", "--dry-run", *json_flag)
        run("dead", "purge", "--older-than", "0s", "--dry-run", *json_flag)
        run("replay", "--all", "--exchange", "shop", "--dry-run", *json_flag)
        run("replay", "--all", "--archive", "--dry-run", *json_flag)
        run("doctor", *json_flag, status=1)
        run("doctor", "--exchange", HOSTILE, "--role", f"relay={HOSTILE}", *json_flag, status=1)
        run("doctor", "--publication", "foreign_one", *json_flag, status=1)
        run("status", "--publication", "foreign_one", *json_flag)
    # One letter has a dedup_key that is pending; the others are replayed.
    assert "kept 1" in run("dead", "replay", "--all")
    run("dead", "replay", "--all", "--json")
    run("pending", "retry-now", "--all", shows=False)
    # Errors: of the database, of wrong usage, of the broker.
    run("publish", HOSTILE, "--payload", "{" + HOSTILE, status=2, shows=False)
    run("publish", HOSTILE, "--payload", "@" + HOSTILE, status=2, shows=False)
    run("publish", "x", "--dedup-key", HOSTILE, "--deliver-after", HOSTILE, status=2)
    run("publish", "x", "--schema", HOSTILE, status=2, shows=False)
    run("publish", HOSTILE, "--database-url", f"postgresql://{HOSTILE}", status=1)
    run("pending", "show", HOSTILE, status=1, shows=False)
    run("dead", "list", "--reason", HOSTILE, status=2, shows=False)
    run("setup", "--publication", "foreign_one", status=1)
    run("setup", "--publication", "foreign_one", "--dry-run", status=1)
    run("teardown", "--publication", "foreign_one", "--slot", "none", "--dry-run")
    run("dlq", "list", HOSTILE, status=1)
    run("dlq", "replay", HOSTILE, "--yes", status=1)
    run("events", "new-epoch", "--yes", shows=False)
    run("events", "delete", "--older-than", "0s", "--category", HOSTILE, "--yes", shows=False)
    run("events", "delete", "--older-than", HOSTILE, status=2, shows=False)
    run("forget", HOSTILE, "--json", "--yes")
    run("forget", HOSTILE, status=2, shows=False)
    run(HOSTILE, status=2)
    assert terminal.used - {HOSTILE} == COMMANDS - {"demo", "worker"}


def redact(event_type: str, payload: Any, headers: Mapping[str, Any]) -> Any:
    return {"type": event_type, "payload": payload, "headers": dict(headers)}


def test_no_management_command_prints_what_a_terminal_obeys(hostile: Stage) -> None:
    site = Site(hostile.database.dsn)
    for arguments, status in (
        (["outbox_stats"], 0),
        (["outbox_stats", "--json"], 0),
        (["outbox_doctor"], 1),
        (["outbox_doctor", "--exchange", HOSTILE, "--role", f"relay={HOSTILE}"], 1),
        (["outbox_replay_dead_letter", "--all"], 0),
        (["outbox_purge_dead_letter", "--older-than", "1d", "--type", HOSTILE], 0),
    ):
        done = site.manage(*arguments)
        assert done.returncode == status, done.stderr
        assert_clean(done.stdout + done.stderr, escaped="--older-than" not in arguments)


def test_no_log_for_people_and_no_endpoint_of_a_service_holds_what_a_terminal_obeys(
    hostile: Stage, rabbit: Broker
) -> None:
    ports = free_port(), free_port()
    settings: dict[str, Any] = {"log_format": "console", "labelled_types": '["*"]', "max_attempts": 1}
    relay = hostile.start_relay(rabbit.url, http_port=ports[0], **settings)
    env = hostile.environment(rabbit.url, http_port=ports[1], **settings)
    scheduler = hostile.run_service("outrider.retry_scheduler", env=env)
    scheduler.wait_for_line("scheduler_active")
    refused = {**columns(rabbit.prefix), "declarations": None, "properties": "{}", "claimed_by": None, "headers": "{}"}
    hostile.connection.execute("TRUNCATE outbox")
    for due_in in ("30 seconds", "-1 second"):
        insert_rows(hostile.connection, 2, due_in=due_in, **{**refused, "ordering_key": None, "dedup_key": None})
    hostile.wait_until_empty()
    for port in ports:
        for path in ("/metrics", "/healthz", "/readyz", "/status", "/" + "%1b%e2%80%ae"):
            assert_clean(get(port, path), escaped=path in ("/metrics", "/status"))
    assert relay.stop() == scheduler.stop() == 0
    for service in (relay, scheduler):
        assert_clean(service.output())
    assert ESCAPED in relay.output() + scheduler.output()


def get(port: int, path: str) -> str:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as error:
        return error.read().decode()


def test_no_log_of_a_worker_and_no_list_of_its_dead_letters_holds_what_a_terminal_obeys(
    run_service: RunService, rabbit: Broker, tmp_path: Path
) -> None:
    queue = f"{rabbit.prefix}.hostile"
    (tmp_path / "hostile_consumers.py").write_text(CONSUMERS)
    env = {
        "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}",
        "QUEUE": queue,
        "OUTRIDER_BROKER_URL": rabbit.url,
        "OUTRIDER_LOG_FORMAT": "console",
        "OUTRIDER_LOG_LEVEL": "debug",
    }
    for arguments, status in (
        (["--no-declare", "hostile_consumers"], 1),
        ([HOSTILE], 2),
        (["--broker-url", HOSTILE, "x"], 2),
    ):
        refused = run_service("outrider", "worker", *arguments, env=env)
        assert refused.wait() == status
        assert_clean(refused.output())
    worker = run_service("outrider", "worker", "hostile_consumers", env=env)
    worker.wait_for_line("worker_active")
    body = json.dumps({"text": HOSTILE}).encode()
    for name in (queue, queue + ".crash"):
        properties: dict[str, Any] = {"message_id": HOSTILE[:60], "type": HOSTILE[:60], "headers": {HOSTILE: HOSTILE}}
        rabbit.publish(body, routing_key=name, content_type="application/json", **properties)
    wait_for(lambda: rabbit.depth(dead_letter_queue(queue)) == 1)
    worker.wait_for_line("ValueError")
    assert worker.stop() == 0
    assert_clean(worker.output(), escaped=True)
    terminal = Terminal(env)
    terminal.run("dlq", "list", queue)
    terminal.run("dlq", "list", queue, "--json")
    terminal.run("dlq", "replay", queue, "--yes", shows=False)
