"""Importing the producer costs an application nothing it does not use."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

HEAVY = {
    "aio_pika", "alembic", "amqp", "asyncpg", "celery", "click", "django", "kombu", "opentelemetry",
    "prometheus_client", "psycopg", "psycopg2", "pydantic", "pydantic_settings", "pytest", "redis", "rich",
    "sentry_sdk", "sqlalchemy", "structlog",
}  # fmt: skip


def modules_after(code: str) -> set[str]:
    program = f"{code}\nimport json, sys; print(json.dumps([name.partition('.')[0] for name in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))


def test_importing_the_producer_imports_no_framework_no_driver_and_no_broker_library() -> None:
    assert modules_after("import outrider; outrider.Outbox()") & HEAVY == set()


@pytest.mark.parametrize("library", ["psycopg"])
def test_a_handle_brings_in_its_own_library_only(library: str) -> None:
    code = f"import {library}, outrider.producer.handles as h; h.adapter_for({library}.Connection.__new__({library}.Connection))"
    assert modules_after(code) & HEAVY == {library}
