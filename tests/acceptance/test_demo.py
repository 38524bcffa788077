"""`outrider demo`: the promise is kept, the figures are one JSON object, and nothing is left behind."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from outrider.embedded import find_rabbitmq
from tests.fixtures.commands import COMMAND, ROOT, environment, run_outbox
from tests.fixtures.waiting import wait_for

DEADLINE_SECONDS = 110.0


@pytest.fixture
def temporary_directory() -> Iterator[Path]:
    """Where the demo writes. Not tmp_path: root runs PostgreSQL as another user, who must get in."""
    directory = Path(tempfile.mkdtemp(prefix="outbox-test-"))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)


def processes_of(directory: Path) -> list[str]:
    """Programs whose command line or working directory is below it."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            where = str((process / "cwd").readlink())
        except OSError:
            continue  # it ended meanwhile
        if str(directory) in command or where.startswith(str(directory)):
            found.append(command)
    return found


def assert_nothing_is_left(directory: Path) -> None:
    assert list(directory.iterdir()) == []
    assert processes_of(directory) == []


def test_what_was_committed_is_delivered_though_the_broker_was_killed(temporary_directory: Path) -> None:
    run = run_outbox(
        *("demo", "--seconds", "6", "--rate", "100", "--json"),
        deadline_seconds=DEADLINE_SECONDS,
        env={"TMPDIR": str(temporary_directory), "OUTRIDER_SLOT": "this machine's settings are not the demo's"},
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
    assert "valkey is dead" in run.stderr
    assert_nothing_is_left(temporary_directory)


def test_it_works_with_rabbitmq_and_sums_up_for_people(temporary_directory: Path) -> None:
    if find_rabbitmq() is None:
        pytest.skip("RabbitMQ is missing: `python -m outrider.embedded.rabbitmq --install` (root)")
    run = run_outbox(
        *("demo", "--seconds", "6", "--rate", "50", "--broker", "rabbitmq"),
        deadline_seconds=DEADLINE_SECONDS,
        env={"TMPDIR": str(temporary_directory)},
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "rabbitmq is dead" in run.stdout
    assert run.stdout.rstrip().endswith("committed = delivered: nothing was lost")
    assert_nothing_is_left(temporary_directory)


@pytest.fixture
def running_demo(temporary_directory: Path) -> Iterator[subprocess.Popen[str]]:
    """A demo in full swing."""
    with subprocess.Popen(
        [*COMMAND, "demo", "--seconds", "60"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
        env=environment({"TMPDIR": str(temporary_directory), "PYTHONUNBUFFERED": "1"}),
    ) as process:
        assert process.stdout is not None
        assert any("everything runs" in line for line in iter(process.stdout.readline, ""))
        assert processes_of(temporary_directory)
        yield process
        process.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_can_be_interrupted_and_leaves_nothing(
    running_demo: subprocess.Popen[str], temporary_directory: Path, number: signal.Signals
) -> None:
    running_demo.send_signal(number)
    output, _ = running_demo.communicate(timeout=60)
    assert running_demo.returncode == 130
    assert "Traceback" not in output
    assert_nothing_is_left(temporary_directory)


def test_a_demo_that_is_killed_leaves_nothing(running_demo: subprocess.Popen[str], temporary_directory: Path) -> None:
    running_demo.kill()
    wait_for(
        lambda: not processes_of(temporary_directory) and not list(temporary_directory.iterdir()),
        deadline_seconds=60,
        message="processes or files are left",
    )


@pytest.mark.parametrize("arguments", [("--rate", "0"), ("--seconds", "1"), ("--broker", "kafka")])
def test_wrong_usage_is_status_2(arguments: tuple[str, ...]) -> None:
    run = run_outbox("demo", *arguments)
    assert run.returncode == 2
    assert arguments[0] in run.stderr
