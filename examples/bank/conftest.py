"""A database with an outbox for each test, on a PostgreSQL that the tests start."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from examples.bank.balances import TABLES
from outrider.embedded.postgres import Postgres


@pytest.fixture(scope="session")
def server() -> Iterator[Postgres]:
    with Postgres(durable=False) as started:
        yield started


@pytest.fixture
def bank_dsn(server: Postgres) -> str:
    name = f"bank_{uuid4().hex[:8]}"
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    dsn = server.dsn(name)
    settings = {**os.environ, "OUTRIDER_DATABASE_URL": dsn}
    subprocess.run([sys.executable, "-m", "outrider", "setup", "--polling-only"], check=True, env=settings)
    return dsn


@pytest.fixture
def connection(bank_dsn: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(bank_dsn, autocommit=True) as opened:
        opened.execute(TABLES)
        yield opened
