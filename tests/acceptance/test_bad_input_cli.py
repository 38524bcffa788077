"""Hostile values on the command line: one line and an exit status, never a traceback, never a changed table."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outrider.cli import main
from outrider.storage.decision import Burial
from tests.fixtures.commands import run_outrider
from tests.fixtures.database import Database
from tests.fixtures.rows import insert_rows, store_of

RunCommand = Callable[..., tuple[int, str]]

SCHEMA = 'x"; DROP TABLE outbox; --'
DEEP = "[" * 5000 + "]" * 5000


@pytest.fixture
def run_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> RunCommand:
    """Run `outrider ARGUMENTS` in this process (a new one takes a second): its exit status and its output."""

    def run(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["outrider", *arguments])
        code: object = 0
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
        captured = capsys.readouterr()
        assert isinstance(code, int)
        return code, captured.out + captured.err

    return run


REFUSED: list[tuple[list[str], int, str]] = [
    (["publish", "x" * 256, "--routing-key", "q"], 2, "must be at most 255 bytes"),
    (["publish", "a\0b"], 2, "must not contain a NUL"),
    (["publish", "\udcff"], 2, "is not UTF-8 text"),
    (["publish", "a", "--header", "a=\udcff"], 2, "is not UTF-8 text"),
    (["publish", "a", "--header", "x" * 256 + "=1"], 2, "a name of 1 to 255 bytes"),
    (["publish", "a", "--payload", DEEP], 2, "nested too deeply"),
    (["publish", "a", "--payload", "@../../../../../../../../etc"], 2, "Is a directory"),
    (["publish", "a", "--payload", "@/dev/zero"], 2, "is larger than 128 MiB"),
    (["publish", "a", "--payload", "@a\0b"], 2, "cannot be read"),
    (["publish", "a", "--expires", "9999-12-31T23:59:59-14:00"], 2, "outside the years 1 to 9999"),
    (["publish", "a", "--deliver-after", "0001-01-01T00:00:00+14:00"], 2, "outside the years 1 to 9999"),
    (["publish", "a", "--wait", "nan"], 2, "not a finite number"),
    (["publish", "a", "--schema", SCHEMA], 1, "does not exist"),
    (["dead", "list", "--schema", SCHEMA], 1, "does not exist"),
    (["dead", "list", "--schema", "a\0b"], 2, "schema: string should match"),
    (["dead", "list", "--schema", "ä" * 40], 2, "must be at most 63 bytes"),
    (["dead", "list", "--limit", "9" * 30], 2, "is not in the range"),
    (["dead", "list", "--type", "a\0b"], 2, "must not contain a NUL"),
    (["dead", "discard", "--all", "--yes", "--schema", SCHEMA], 1, "does not exist"),
    (["dead", "replay", "--all", "--rate", "nan"], 2, "not a finite number"),
    (["dead", "show", "9" * 20], 2, "is neither a row's id nor an event_id"),
    (["dead", "show", "1", "--redactor", "../../etc/passwd"], 2, "cannot be imported"),
    (["dead", "show", "1", "--redactor", "..relative.name"], 2, "cannot be imported"),
    (["dead", "show", "1", "--redactor", "os.path"], 2, "is not a function"),
    (["dead", "list", "--config", "../../../../../../../../etc/passwd"], 2, "is not a TOML file"),
    (["dead", "list", "--config", "/dev/zero"], 2, "is larger than 1 MiB"),
    (["dead", "list", "--database-url", "\udcff"], 2, "database_url"),
    (["pending", "list", "--schema", SCHEMA], 1, "does not exist"),
    (["replay", "--stream", "s", "--after", str(2**63)], 2, "is not in the range"),
    (["replay", "--stream", "s", "--routing-key", "ä" * 128], 2, "must be at most 255 bytes"),
    (["setup", "--handover-after", "nan"], 2, "not a finite number"),
    (["status", "--schema", SCHEMA], 1, "there is no outbox in the schema"),
    (["\udcff"], 2, "No such command"),
]


def test_wrong_input_is_an_error_in_one_line_and_nothing_is_written(
    run_command: RunCommand, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTRIDER_DATABASE_URL", database.dsn)
    for arguments, status, words in REFUSED:
        code, output = run_command(*arguments)
        assert (code, words in output, output.count("\n")) == (status, True, 1), (arguments, output)
        assert "root:" not in output
    assert run_command("dead", "list", "--type", "%s' OR 1=1; DROP TABLE outbox; --")[0] == 0
    with database.connect() as connection:
        assert connection.execute("SELECT count(*) FROM outbox").fetchone() == (0,)


def test_a_dead_letter_with_any_content_is_listed_shown_and_discarded(
    run_command: RunCommand, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTRIDER_DATABASE_URL", database.dsn)
    hostile: list[dict[str, Any]] = [
        {"payload": b"\xff\xfe\x00", "content_type": "application/json"},
        {"payload": DEEP.encode()},
        {"headers": f'{{"x": {DEEP}}}', "context": f'{{"x": {DEEP}}}', "declarations": DEEP},
        {"headers": '{"\\u0000\\ud800": "\\u001b[31m"}', "event_type": "\x1b[2J\u202e[bold]x[/bold]"},
        {"headers": "{" + f'"x": {"9" * 5000}' + "}"},
        {"properties": '{"priority": 300, "expiration": -1e400}', "attempts": 2**31 - 1},
        {"routing_key": "ä" * 127, "exchange": "\r\n", "dedup_key": "%s"},
    ]
    with store_of(database) as store:
        ids = [insert_rows(store.connection, **columns)[0] for columns in hostile]
        store.claim_due("test", batch_size=100, lease_seconds=60)
        store.bury([Burial(row, "undecodable", "\x1b]0;title\x07", 0) for row in ids], claim="test")
    for arguments in (["list"], ["list", "--json"], ["list", "--grouped"]):
        assert run_command("dead", *arguments)[0] == 0
    for row in ids:
        for options in (
            [],
            ["--payload"],
            ["--json"],
            ["--json", "--payload"],
            ["--redactor", "tests.acceptance.test_hostile_text.redact"],
        ):
            code, output = run_command("dead", "show", str(row), *options)
            assert code == 0, output
            assert "\x1b" not in output
            assert "Traceback" not in output
            if "--json" in options:
                json.loads(output)
    assert run_command("dead", "discard", "--all", "--yes")[0] == 0
    assert "\x1b" not in run_command("dead", "list")[1]


def test_a_wrong_settings_file_ends_a_process_in_the_same_way(tmp_path: Path) -> None:
    (tmp_path / "deep.toml").write_text("labelled_types = " + "[" * 20_000)
    result = run_outrider("dead", "list", "--config", str(tmp_path / "deep.toml"))
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("outrider: error: cannot read the settings file")
    assert result.stderr.count("\n") == 1
