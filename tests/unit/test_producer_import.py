"""Importing outrider imports no library that the application does not use itself."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import outrider

HEAVY = {
    "aio_pika", "alembic", "amqp", "asyncpg", "celery", "click", "django", "kombu", "opentelemetry",
    "prometheus_client", "psycopg", "psycopg2", "pydantic", "pydantic_settings", "pytest", "redis", "rich",
    "sentry_sdk", "sqlalchemy", "structlog",
}  # fmt: skip


def modules_after(code: str) -> set[str]:
    program = f"{code}\nimport json, sys; print(json.dumps([name.partition('.')[0] for name in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))


@pytest.mark.parametrize("code", ["import outrider", "import outrider; outrider.Outbox()", "from outrider import *"])
def test_importing_outrider_imports_no_framework_no_driver_and_no_broker_library(code: str) -> None:
    assert modules_after(code) & HEAVY == set()


def test_import_outrider_does_not_import_the_producer() -> None:
    assert modules_after("import outrider, sys; assert 'outrider.producer' not in sys.modules")


@pytest.mark.parametrize("name", outrider.__all__)
def test_every_public_name_resolves(name: str) -> None:
    assert getattr(outrider, name) is not None
    assert name in dir(outrider)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'outrider' has no attribute 'Inbox'"):
        outrider.Inbox  # noqa: B018
    with pytest.raises(ImportError, match="Inbox"):
        exec("from outrider import Inbox")


def test_a_handle_imports_its_own_library_only() -> None:
    code = (
        "import psycopg, outrider.producer.handles as handles;"
        "handles.adapter_for(psycopg.Connection.__new__(psycopg.Connection))"
    )
    assert modules_after(code) & HEAVY == {"psycopg"}
