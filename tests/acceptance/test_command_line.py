"""What all commands have in common, run as processes: help, and wrong settings as one line with the remedy."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import click
import pytest

from outrider.cli import outrider
from tests.fixtures.commands import ROOT, environment, run_outrider

SERVICES = ("outrider.cdc_relay", "outrider.retry_scheduler")


def every_command(group: click.Group = outrider, *path: str) -> Iterator[tuple[str, ...]]:
    yield path
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        if isinstance(command, click.Group):
            yield from every_command(command, *path, name)
        else:
            yield (*path, name)


def run_service(module: str, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        check=False,
        env=environment(settings),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_every_command_has_short_help_that_is_not_cut() -> None:
    commands = list(every_command())
    assert len(commands) > 15
    for path in commands:
        done = run_outrider(*path, "-h")
        assert done.returncode == 0, (path, done.stderr)
        cut = [line for line in done.stdout.splitlines() if line.endswith("...") and not line.startswith("Usage:")]
        assert not cut, path


@pytest.mark.parametrize("module", SERVICES)
def test_the_services_have_the_short_flag_for_help(module: str) -> None:
    assert run_service(module, "-h").stdout.startswith("Usage: ")


@pytest.mark.parametrize("path", [(), ("dead",), ("pending",), ("dlq",)])
def test_a_bare_command_shows_its_help_and_exits_with_0(path: tuple[str, ...]) -> None:
    done = run_outrider(*path)
    assert done.returncode == 0
    assert done.stdout.startswith("Usage: ")
    assert not done.stderr


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"BROKER_URL": "kafka://localhost"}, "supported are amqp://, amqps://, redis://"),
        ({"DATABASE_URL": "postgresql+asyncpg://u:s3cret@h/d"}, "write postgresql:// instead of postgresql+asyncpg://"),
        ({"SEND_TIMEOUT_SECONDS": "soon"}, "send_timeout_seconds: "),
    ],
)
@pytest.mark.parametrize("module", SERVICES)
def test_a_wrong_setting_is_one_line_with_the_remedy(module: str, settings: dict[str, str], words: str) -> None:
    usable = {"DATABASE_URL": "postgresql://127.0.0.1:1/d", "BROKER_URL": "amqp://127.0.0.1:1"}
    done = run_service(module, **{f"OUTRIDER_{name}": value for name, value in (usable | settings).items()})
    assert done.returncode == 2
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert "s3cret" not in done.stderr
