"""
django-celery-outbox 0.4.3 in its own virtual environment, and the shop that uses it.

It has the same versions of Django, Celery, kombu and psycopg as this project's environment.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Final, Literal

from bench.peer_venv import installed
from bench.servers import ROOT, BenchmarkError, BenchServers
from outrider.demo.servers import service_environment

PACKAGE: Final = "django-celery-outbox==0.4.3"
SAME_VERSIONS: Final = ("django", "celery", "kombu", "amqp", "psycopg", "psycopg-binary")
QUEUE: Final = "bench-tasks"


def interpreter() -> Path:
    """The peer's Python; installs the peer if necessary."""
    return installed("django-celery-outbox", [PACKAGE, *(f"{name}=={version(name)}" for name in SAME_VERSIONS)])


class Shop:
    """The Django shop on one database, with our outbox or the peer's."""

    def __init__(self, whose: Literal["ours", "theirs"], dsn: str, broker_url: str) -> None:
        self._whose = whose
        self.python = sys.executable if whose == "ours" else str(interpreter())
        self.environment = {
            **service_environment({}),
            "PYTHONPATH": str(ROOT),
            "DJANGO_SETTINGS_MODULE": "bench.shop.settings",
            "BENCH_DATABASE_URL": dsn,
            "BENCH_BROKER_URL": broker_url,
            "BENCH_QUEUE": QUEUE,
        }

    def enqueue(self, calls: int) -> dict[str, list[float]]:
        """Enqueue one task with a known id and `calls` others; returns microseconds (see bench.shop.enqueue)."""
        output = self._python("-m", "bench.shop.enqueue", self._whose, str(calls))
        times: dict[str, list[float]] = json.loads(output)
        return times

    def migrate(self) -> None:
        self._python("-m", "django", "migrate", "--verbosity", "0")

    def _python(self, *arguments: str) -> str:
        run = subprocess.run(
            [self.python, *arguments],
            check=False,
            env=self.environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=600,
            process_group=0,  # Ctrl-C goes to the benchmark, which then ends this process
        )
        if run.returncode != 0:
            last = (run.stderr.strip().splitlines() or ["no output"])[-1]
            raise BenchmarkError(f"{' '.join(arguments)} of {self._whose} ended with {run.returncode}: {last}")
        return run.stdout


@contextmanager
def peer_shop(servers: BenchServers, name: str) -> Iterator[tuple[Shop, str]]:
    """The peer's shop on a new database with the peer's tables, and the DSN of that database."""
    with servers.database(name) as dsn:
        shop = Shop("theirs", dsn, servers.rabbitmq.url)
        shop.migrate()
        yield shop, dsn
