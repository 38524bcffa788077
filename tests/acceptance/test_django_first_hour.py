"""The first hour with Django: a generated project, its manage.py and a fresh database, on the supported releases."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from outrider.embedded.postgres import Postgres
from tests.fixtures.broker import Broker
from tests.fixtures.database import Database, create_database, drop_database
from tests.fixtures.django_project import NEWEST, Project, django_release
from tests.fixtures.documentation import documented
from tests.fixtures.servers import SharedPostgres
from tests.fixtures.services import RunService
from tests.fixtures.waiting import wait_for


@pytest.fixture
def empty(postgres_server: SharedPostgres) -> Iterator[Database]:
    """A database without the outbox's tables."""
    fresh = create_database(postgres_server.url)
    yield fresh
    drop_database(fresh)


@pytest.mark.parametrize("release", ["4.2", "5.2", NEWEST])
def test_migrate_creates_everything_in_a_fresh_database_and_can_be_run_again(
    release: str, tmp_path: Path, empty: Database
) -> None:
    project = Project(tmp_path, empty.dsn, django=django_release(release)).create()
    version = project.manage("version").stdout.strip()
    assert release == NEWEST or version.startswith(release)
    done = project.manage("migrate")
    assert done.returncode == 0, done.stderr
    assert "Applying outrider.0001_initial... OK" in done.stdout
    assert "outrider." not in done.stderr
    done = project.manage("migrate")
    assert done.returncode == 0, done.stderr
    assert "No migrations to apply" in done.stdout
    assert project.manage("check", "--database", "default").returncode == 0
    assert project.manage("makemigrations", "--check", "--dry-run").returncode == 0


def test_a_later_migration_of_the_outbox_is_not_blocked_by_the_checks(tmp_path: Path, empty: Database) -> None:
    """As after an upgrade: the database lacks a migration that this version knows."""
    project = Project(tmp_path, empty.dsn).create()
    assert project.manage("migrate").returncode == 0
    with empty.connect() as connection:
        connection.execute("DELETE FROM outbox_migration WHERE version = 1")
    done = project.manage("migrate")
    assert done.returncode == 0, done.stderr
    done = project.manage("check", "--database", "default")
    assert done.returncode == 0
    assert "(outrider.W009) migrations [1] of the outbox are not applied to the schema 'public'" in done.stderr
    assert project.manage("check", "--database", "default", "--fail-level", "WARNING").returncode == 1


PAGE = "docs/django.md"
# Instead of `[..., `: the project's applications, without the one that the block adds.
OTHER_APPS = "[*filter('outrider.producer.django'.__ne__, INSTALLED_APPS), "

PLACE_AN_ORDER = """
import json
from django.db import models, transaction
from outrider.producer.django import publish
from shop.celery import app

@app.task(name="shop.bill")
def bill(order):
    pass

order = type("Order", (), {"id": 42, "save": lambda self: None})()
"""


def test_the_documented_first_hour_delivers_an_event_and_a_task(
    private_postgres: Callable[..., Postgres], rabbit: Broker, tmp_path: Path, run_service: RunService
) -> None:
    server = private_postgres(settings={"wal_level": "logical"})
    files = {
        "shop/celery.py": documented(PAGE, "# shop/celery.py"),
        "shop/models.py": documented(PAGE, "from django.dispatch import receiver"),
        "shop/urls.py": "from django.urls import include, path\n"
        + documented(PAGE, "urlpatterns = [").replace("    ...,\n", ""),
    }
    settings = documented(PAGE, "# settings.py").replace("[..., ", OTHER_APPS)
    project = Project(tmp_path, server.dsn(), settings=settings, files=files).create()
    project.variables = {"BROKER_URL": rabbit.url}
    done = project.manage("migrate")
    assert done.returncode == 0, done.stderr
    done = project.manage("outbox_setup")
    assert (done.returncode, "slot outbox: created" in done.stdout) == (0, True), done.stderr
    done = project.manage("check", "--database", "default", "--fail-level", "WARNING")
    assert (done.returncode, done.stderr) == (0, "")
    rabbit.declare_exchange("shop", type="topic")
    queue = rabbit.declare_queue()
    rabbit.bind(queue, "shop", "order.placed")
    order = PLACE_AN_ORDER + documented(PAGE, "# anywhere: events")
    project.shell(f"{order}    bill.apply_async([42], queue={rabbit.declare_queue()!r})\nprint(json.dumps(None))")
    relay = project.start(run_service, "outbox_relay")
    scheduler = project.start(run_service, "outbox_retry_scheduler")
    assert [message.routing_key for message in rabbit.get_all(queue, 1, deadline_seconds=60)] == ["order.placed"]
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        wait_for(lambda: connection.execute("SELECT count(*) FROM outbox").fetchall() == [(0,)])
        assert connection.execute("SELECT count(*) FROM outbox_dead_letter").fetchall() == [(0,)]
    assert (relay.stop(), scheduler.stop()) == (0, 0)
