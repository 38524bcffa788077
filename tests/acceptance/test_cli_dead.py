"""`outrider dead` against a real database."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator

import pytest

from outrider.storage.store import Store
from tests.fixtures.commands import COMMAND, ROOT, environment, run_outrider
from tests.fixtures.database import Database
from tests.fixtures.message_commands import CARD, PAYLOAD, bury_rows, run_cli, run_cli_json
from tests.fixtures.rows import ids_in, query, store_of
from tests.fixtures.waiting import wait_for

CLEAR_SCREEN = "\x1b[2J"
RIGHT_TO_LEFT = "\u202e"


@pytest.fixture
def store(database: Database) -> Iterator[Store]:
    with store_of(database) as store:
        yield store


def test_the_newest_come_first_and_control_characters_are_escaped(store: Store, database: Database) -> None:
    first, *_ = bury_rows(store, 2)
    (last,) = bury_rows(
        store, event_type=f"evil{CLEAR_SCREEN}[red]", error=f"one\rtwo{RIGHT_TO_LEFT} [link=x]", reason="undecodable"
    )
    run = run_outrider("dead", "list", env={"OUTRIDER_DATABASE_URL": database.dsn})
    assert run.returncode == 0, run.stderr
    heading, newest, *_, oldest = run.stdout.splitlines()
    assert heading.split()[:2] == ["id", "died"]
    assert newest.startswith(str(last))
    assert oldest.startswith(str(first))
    assert "evil\\x1b[2J[red]" in newest
    assert "one\\rtwo\\u202e [link=x]" in newest
    documents = run_cli_json(database, "dead", "list", "--limit", "2")
    assert [each["id"] for each in documents] == [last, first + 1]
    assert documents[0]["event_type"] == f"evil{CLEAR_SCREEN}[red]"
    assert "payload" not in documents[0]


def test_failures_are_grouped_and_a_group_can_be_replayed(store: Store, database: Database) -> None:
    same = bury_rows(store, 3, error="MessageTooLarge: {n}2 bytes to 'orders-{n}'", attempts=4)
    others = bury_rows(store, 2, error="NoRoute: orders")
    big, small = run_cli_json(database, "dead", "list", "--grouped")
    assert (big["messages"], big["error"], big["example_id"]) == (3, "MessageTooLarge: <n> bytes to <value>", same[-1])
    assert (small["messages"], small["reason"]) == (2, "rejected")
    assert big["fingerprint"] in run_cli(database, "dead", "list", "--grouped")

    by_fingerprint = ("--fingerprint", big["fingerprint"])
    (preview,) = run_cli_json(database, "dead", "replay", *by_fingerprint, "--dry-run")
    assert (preview["selected"], [each["id"] for each in preview["newest"]]) == (3, same[::-1])
    assert ids_in(store.connection) == []
    assert run_cli(database, "dead", "replay", *by_fingerprint, "--rate", "1000") == "replayed 3\n"
    assert ids_in(store.connection, "outbox_dead_letter") == others
    assert query(store.connection, "SELECT DISTINCT attempts, owner FROM outbox") == [(0, "relay")]


def test_a_dead_letter_is_shown_with_its_payload_redacted(store: Store, database: Database) -> None:
    (dead,) = bury_rows(store, payload=PAYLOAD, headers=f'{{"kwargsrepr": "{CARD}", "tenant": "a"}}')
    shown = run_cli(database, "dead", "show", str(dead))
    assert f"<{len(PAYLOAD)} bytes of application/json>" in shown
    assert CARD not in shown
    assert "NoRoute: nowhere" in shown

    (event_id,) = query(store.connection, "SELECT event_id::text FROM outbox_dead_letter")
    (raw,) = run_cli_json(database, "dead", "show", event_id, "--payload")
    assert (raw["id"], raw["payload"]) == (dead, PAYLOAD.decode())

    redactor = {"OUTRIDER_REDACTOR": "tests.fixtures.message_commands.redact"}
    redacted = run_cli(database, "dead", "show", str(dead), "--payload", env=redactor)
    assert '"card": "***"' in redacted
    assert CARD not in redacted
    line = run_cli(database, "dead", "show", str(dead), status=2, env={"OUTRIDER_REDACTOR": "no.such.redactor"})
    assert "redactor 'no.such.redactor' cannot be imported" in line
    assert "there is no dead letter 99" in run_cli(database, "dead", "show", "99", status=1)


def test_discard_and_purge_need_a_condition_and_a_confirmation(store: Store, database: Database) -> None:
    old = bury_rows(store, 2, event_type="order.placed")
    store.connection.execute("UPDATE outbox_dead_letter SET died_at = died_at - interval '8 days'")
    new = bury_rows(store, 2, event_type="order.paid")
    assert "select messages by ids" in run_cli(database, "dead", "discard", "--yes", status=2)
    assert "give --yes" in run_cli(database, "dead", "discard", "--all", status=2)
    assert run_cli(database, "dead", "purge", "--older-than", "7d", "--dry-run").startswith("would discard 2\n")
    assert ids_in(store.connection, "outbox_dead_letter") == old + new
    assert run_cli(database, "dead", "purge", "--older-than", "7d", "--yes") == "discarded 2\n"
    line = run_cli(database, "dead", "discard", str(new[0]), str(old[0]), "--type", "order.p?id", "--yes", status=1)
    assert "1 of the given ids" in line
    assert ids_in(store.connection, "outbox_dead_letter") == new[1:]


def test_on_a_terminal_discard_asks_and_shows_its_progress(store: Store, database: Database) -> None:
    bury_rows(store, 3)
    assert ids_in(store.connection, "outbox_dead_letter")
    refused, _ = _on_a_terminal(database, "n\n")
    assert refused == 130
    assert len(ids_in(store.connection, "outbox_dead_letter")) == 3
    status, screen = _on_a_terminal(database, "y\n")
    assert status == 0, screen
    assert "Delete 3 dead letters for good?" in screen
    assert "discarding" in screen
    assert ids_in(store.connection, "outbox_dead_letter") == []


def _on_a_terminal(database: Database, answer: str) -> tuple[int, str]:
    """The exit status of `outrider dead discard --all`, and its output on a terminal."""
    user, terminal = os.openpty()
    screen = ""
    try:
        process = subprocess.Popen(
            [*COMMAND, "dead", "discard", "--all"],
            env=environment({"OUTRIDER_DATABASE_URL": database.dsn, "TERM": "xterm"}),
            cwd=ROOT,
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
        )
        os.close(terminal)
        os.set_blocking(user, False)

        def seen(text: str | None) -> bool:
            nonlocal screen
            try:
                screen += os.read(user, 65536).decode()
            except BlockingIOError:
                pass
            except OSError:  # the process has closed the terminal
                return True
            return text is not None and text in screen

        with process:
            wait_for(lambda: seen("[y/N]"), deadline_seconds=60, message="no question was asked")
            os.write(user, answer.encode())
            wait_for(lambda: seen(None), deadline_seconds=60, message="the process does not end")
            return process.wait(60), screen
    finally:
        os.close(user)
