"""`outrider doctor`: one line per check, the exit status, JSON."""

from __future__ import annotations

import json
import subprocess

import pytest
from click.testing import CliRunner

from outrider.cli.doctor import command
from outrider.errors import SettingsError
from tests.fixtures.broker import Broker
from tests.fixtures.commands import ROOT, run_outrider
from tests.fixtures.stage import Stage
from tests.fixtures.waiting import wait_for

SHIFTED_CLOCK = ROOT / "tests" / "faults" / "shifted_clock"
CHECKS = {
    "pooler",
    "server",
    "wal_level",
    "wal_sender_timeout",
    "replication role",
    "replication connection",
    "publication",
    "max_replication_slots",
    "max_wal_senders",
    "slot",
    "relay",
    "retained WAL",
    "max_slot_wal_keep_size",
    "handover",
    "migrations",
    "indexes",
    "vacuum",
    "oldest transaction",
    "own grants",
    "scheduler",
    "workers",
    "clock",
    "broker",
    "confirms",
    "exchanges",
}


def levels_of(run: subprocess.CompletedProcess[str]) -> dict[str, str]:
    """The level of every check."""
    *findings, _ = run.stdout.splitlines()
    return {line[9:].partition(": ")[0]: line[:8].strip() for line in findings}


def test_a_working_outbox_is_healthy_and_with_strict_a_warning_fails(stage: Stage, rabbit: Broker) -> None:
    environment = stage.environment(rabbit.url)
    stage.start_relay(rabbit.url)
    scheduler = stage.run_service("outrider.retry_scheduler", env=environment)
    scheduler.wait_for_line("scheduler_active")
    wait_for(
        lambda: stage.connection.execute("SELECT count(*) FROM outbox_worker").fetchone() == (2,), deadline_seconds=60
    )
    run = run_outrider("doctor", env=environment)
    assert run.returncode == 0, run.stdout + run.stderr
    levels = levels_of(run)
    assert levels.keys() >= CHECKS
    assert {check: level for check, level in levels.items() if level != "ok"} == {"max_slot_wal_keep_size": "warning"}
    assert run.stdout.splitlines()[-1] == f"{len(levels) - 1} ok, 0 unknown, 1 warnings, 0 failed"

    strict = run_outrider("doctor", "--strict", "--json", env=environment)
    assert strict.returncode == 1
    document = json.loads(strict.stdout)
    assert (document["ok"], document["failed"], document["warnings"]) == (False, 0, 1)
    assert {finding["check"]: finding["level"] for finding in document["findings"]} == levels
    assert all(finding.keys() == {"check", "level", "found", "remedy"} for finding in document["findings"])


def test_a_failure_is_a_line_and_status_1_also_when_the_database_is_down(bare_stage: Stage) -> None:
    run = run_outrider("doctor", "--slot", "no_such_slot", env={"OUTRIDER_DATABASE_URL": bare_stage.database.dsn})
    assert run.returncode == 1
    assert run.stderr == ""
    assert (
        "failed   slot: there is no slot no_such_slot; run `outrider setup`, or start the relay, which creates it"
        in run.stdout.splitlines()
    )
    refusing = {"OUTRIDER_DATABASE_URL": "postgresql://shop:s3cret@127.0.0.1:1/shop"}
    run = run_outrider("doctor", env={**refusing, "OUTRIDER_BROKER_URL": "amqp://shop:s3cret@127.0.0.1:1//"})
    assert run.returncode == 1
    assert list(levels_of(run).items()) == [("database", "failed"), ("broker", "failed")]
    assert "s3cret" not in run.stdout + run.stderr


@pytest.mark.parametrize(("seconds", "direction"), [("3600", "ahead of"), ("-3600", "behind")])
def test_a_clock_that_is_an_hour_off_is_a_warning(bare_stage: Stage, seconds: str, direction: str) -> None:
    shifted = {"PYTHONPATH": f"{SHIFTED_CLOCK}:{ROOT}", "FAULTS_CLOCK_SHIFT_SECONDS": seconds}
    run = run_outrider("doctor", env={"OUTRIDER_DATABASE_URL": bare_stage.database.dsn, **shifted})
    (line,) = [line for line in run.stdout.splitlines() if " clock: " in line]
    assert line.startswith("warning  clock: this machine's clock is 3")
    assert f"s {direction} the database's; check NTP on both machines" in line


def test_wrong_usage_and_settings_are_errors_and_not_findings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTRIDER_DATABASE_URL", "dbname=x")
    run = CliRunner().invoke(command, ["--role", "janitor=bob"])
    assert run.exit_code == 2
    assert "'janitor' must be JOB=ROLE, with JOB one of producer, relay" in run.output
    run = CliRunner().invoke(command, ["--broker-url", "nix://x"])
    assert isinstance(run.exception, SettingsError)
    assert run.output == ""
