"""
django-celery-outbox 0.4.3 in a virtual environment of its own, and the shop that uses it.

It has the same versions of Django, Celery, kombu and psycopg as this project's own environment.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Final, Literal

from bench.peer_environment import installed
from bench.stage import ROOT, BenchmarkError, Stage
from outrider.settings.models import ENVIRONMENT_PREFIX

PACKAGE: Final = "django-celery-outbox==0.4.3"
SAME_VERSIONS: Final = ("django", "celery", "kombu", "amqp", "psycopg", "psycopg-binary")
QUEUE: Final = "bench-tasks"


def interpreter() -> Path:
    """The peer's Python; installs the peer where it is not yet."""
    return installed("django-celery-outbox", [PACKAGE, *(f"{name}=={version(name)}" for name in SAME_VERSIONS)])


class Shop:
    """The Django shop over one database, with one outbox or the other."""

    def __init__(self, whose: Literal["ours", "theirs"], dsn: str, broker_url: str) -> None:
        self._whose = whose
        self.python = sys.executable if whose == "ours" else str(interpreter())
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(ENVIRONMENT_PREFIX)}
        self.environment = {
            **inherited,
            "PYTHONPATH": str(ROOT),
            "DJANGO_SETTINGS_MODULE": "bench.shop.settings",
            "BENCH_DATABASE_URL": dsn,
            "BENCH_BROKER_URL": broker_url,
            "BENCH_QUEUE": QUEUE,
        }

    def enqueue(self, calls: int) -> dict[str, list[float]]:
        """Enqueue one task with a known id, and this many others; their microseconds (see bench.shop.enqueue)."""
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
            process_group=0,  # Ctrl-C is for the harness, which then ends this
        )
        if run.returncode != 0:
            last = (run.stderr.strip().splitlines() or ["without a word"])[-1]
            raise BenchmarkError(f"{' '.join(arguments)} of {self._whose} ended with {run.returncode}: {last}")
        return run.stdout


@contextmanager
def peer_shop(stage: Stage, name: str) -> Iterator[tuple[Shop, str]]:
    """The peer's shop on a database of its own, with the peer's tables; and the database's DSN."""
    with stage.database(name) as dsn:
        shop = Shop("theirs", dsn, stage.rabbitmq.url)
        shop.migrate()
        yield shop, dsn
