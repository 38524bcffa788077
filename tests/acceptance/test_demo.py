"""`outrider demo`: nothing is lost, the figures are one JSON object, and no process or file remains."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from outrider.embedded.rabbitmq import find_rabbitmq
from tests.fixtures.commands import COMMAND, ROOT, environment, run_outrider
from tests.fixtures.waiting import wait_for

DEADLINE_SECONDS = 110.0


@pytest.fixture
def temporary_directory() -> Iterator[Path]:
    """The demo's temporary directory. Not tmp_path: root runs PostgreSQL as another user, which needs access."""
    directory = Path(tempfile.mkdtemp(prefix="outbox-test-"))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)


def processes_of(directory: Path) -> list[str]:
    """Command lines of processes that run in this directory or mention it."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            where = str((process / "cwd").readlink())
        except OSError:
            continue  # the process ended
        if str(directory) in command or where.startswith(str(directory)):
            found.append(command)
    return found


def assert_nothing_remains(directory: Path) -> None:
    assert list(directory.iterdir()) == []
    assert processes_of(directory) == []


def test_every_committed_message_is_delivered_although_the_broker_is_killed(temporary_directory: Path) -> None:
    run = run_outrider(
        *("demo", "--seconds", "6", "--rate", "100", "--json"),
        deadline_seconds=DEADLINE_SECONDS,
        env={"TMPDIR": str(temporary_directory), "OUTRIDER_SLOT": "the demo ignores the settings of this machine"},
    )
    assert run.returncode == 0, run.stderr
    (line,) = run.stdout.splitlines()
    figures = json.loads(line)
    assert figures["committed"] == figures["delivered"] > 100
    assert figures["lost"] == figures["rolled_back_but_delivered"] == 0
    assert figures["rolled_back"] > 0
    assert 0 < figures["p50_ms"] <= figures["p99_ms"]
    assert figures["outage_seconds"] > 1
    assert figures["outage_messages"] > 0
    assert "valkey was killed" in run.stderr
    assert_nothing_remains(temporary_directory)


def test_it_works_with_rabbitmq_and_prints_a_summary_with_the_next_steps(temporary_directory: Path) -> None:
    if find_rabbitmq() is None:
        pytest.skip("RabbitMQ is missing: `python -m outrider.embedded.rabbitmq --install` (root)")
    run = run_outrider(
        *("demo", "--seconds", "6", "--rate", "50", "--broker", "rabbitmq"),
        deadline_seconds=DEADLINE_SECONDS,
        env={"TMPDIR": str(temporary_directory)},
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "rabbitmq was killed" in run.stdout
    assert "\ncommitted = delivered: nothing was lost\n" in run.stdout
    assert "outrider setup" in run.stdout
    assert_nothing_remains(temporary_directory)


@pytest.fixture
def running_demo(temporary_directory: Path) -> Iterator[subprocess.Popen[str]]:
    """A demo whose services are running."""
    with subprocess.Popen(
        [*COMMAND, "demo", "--seconds", "60"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
        env=environment({"TMPDIR": str(temporary_directory), "PYTHONUNBUFFERED": "1"}),
    ) as process:
        assert process.stdout is not None
        assert any("services are running" in line for line in iter(process.stdout.readline, ""))
        assert processes_of(temporary_directory)
        yield process
        process.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_can_be_interrupted_and_cleans_up(
    running_demo: subprocess.Popen[str], temporary_directory: Path, number: signal.Signals
) -> None:
    running_demo.send_signal(number)
    output, _ = running_demo.communicate(timeout=60)
    assert running_demo.returncode == 130
    assert "Traceback" not in output
    assert_nothing_remains(temporary_directory)


def test_processes_and_files_of_a_killed_demo_are_removed(
    running_demo: subprocess.Popen[str], temporary_directory: Path
) -> None:
    running_demo.kill()
    wait_for(
        lambda: not processes_of(temporary_directory) and not list(temporary_directory.iterdir()),
        deadline_seconds=60,
        message="processes or files remain",
    )


@pytest.mark.parametrize("arguments", [("--rate", "0"), ("--seconds", "1"), ("--broker", "kafka")])
def test_wrong_usage_is_status_2(arguments: tuple[str, ...]) -> None:
    run = run_outrider("demo", *arguments)
    assert run.returncode == 2
    assert arguments[0] in run.stderr
