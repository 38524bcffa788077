"""
The example of README.md, as printed: its files, its commands, in another order than printed too.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures.broker import Broker
from tests.fixtures.commands import ROOT, environment
from tests.fixtures.database import Database, create_database, drop_database
from tests.fixtures.servers import SharedPostgres
from tests.fixtures.services import RunService, Service
from tests.fixtures.waiting import wait_for

MODULES = {"cdc-relay": "outrider.cdc_relay", "retry-scheduler": "outrider.retry_scheduler", "outrider": "outrider"}


def example_files() -> dict[str, str]:
    """The Python files of the README: a code block whose first line is a comment with the file's name."""
    return dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL))


def example_commands() -> list[list[str]]:
    """The commands of the section "Running it", without those that install and export."""
    section = (ROOT / "README.md").read_text().partition("## Running it")[2].partition("```console\n")[2]
    lines = [line[2:].partition("#")[0].strip() for line in section.partition("```")[0].splitlines()]
    return [line.split() for line in lines if not line.startswith(("pip ", "export "))]


class Example:
    def __init__(self, directory: Path, settings: dict[str, str], run_service: RunService) -> None:
        self.directory = directory
        self.environment = {**settings, "PYTHONPATH": f"{ROOT}{os.pathsep}{directory}"}
        self._run_service = run_service
        for name, text in example_files().items():
            (directory / name).write_text(text)

    def run(self, *command: str) -> None:
        program = [sys.executable, *(("-m", MODULES[command[0]]) if command[0] in MODULES else ()), *command[1:]]
        done = subprocess.run(
            program,
            cwd=self.directory,
            env={**environment(), **self.environment},
            check=False,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"

    def start(self, *command: str) -> Service:
        return self._run_service(MODULES[command[0]], *command[1:], env=self.environment)


@pytest.fixture
def example(
    postgres_server: SharedPostgres, rabbit_vhost: Broker, run_service: RunService, tmp_path: Path
) -> Iterator[Example]:
    """An empty database and an empty vhost: the README's queue has a fixed name."""
    database: Database = create_database(postgres_server.url)
    settings = {
        "OUTRIDER_DATABASE_URL": database.dsn,
        "OUTRIDER_BROKER_URL": rabbit_vhost.url,
        "OUTRIDER_SLOT": f"slot_{uuid.uuid4().hex[:10]}",  # slots belong to the server, which tests share
    }
    yield Example(tmp_path, settings, run_service)
    drop_database(database)


def test_the_commands_of_the_readme_deliver_the_order(example: Example) -> None:
    commands = example_commands()
    assert [command[0] for command in commands] == [
        *("outrider", "cdc-relay", "retry-scheduler", "outrider"),
        "python",
    ]
    services = []
    for command in commands:
        if command[-1] == "&":
            services.append(example.start(*command[:-1]))
        else:
            example.run(*command)
    line = services[-1].wait_for_line("received", deadline_seconds=90)
    assert re.search(r"received [0-9a-f-]{36} \{'order': 42\}", line)
    assert [service.stop() for service in services] == [0, 0, 0]


def test_an_order_that_is_published_before_the_workers_first_start_is_delivered_soon(example: Example) -> None:
    (setup, *services, worker, shop) = example_commands()
    example.run(*setup)
    relay, scheduler = (example.start(*command[:-1]) for command in services)
    example.run(*shop)
    refused = relay.wait_for_line("NoRoute", deadline_seconds=60)
    assert "no queue is bound to exchange 'amq.topic' for routing key 'order.placed': bind one" in refused
    running = example.start(*worker[:-1])
    running.wait_for_line("received", deadline_seconds=60)
    wait_for(lambda: running.is_running and relay.is_running and scheduler.is_running)
