"""
OnceTask on a real Celery worker: messages are delivered twice, attempts fail, effects are counted.

The worker imports this module for its application: addresses come from the environment (TEST_BROKER, TEST_RESULTS,
TEST_DATABASE).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import pytest
from celery import Celery, chain
from sqlalchemy import create_engine, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import sessionmaker

from outrider.consumer.inbox.celery import OnceTask
from tests.fixtures.broker import Broker
from tests.fixtures.database import Database
from tests.fixtures.django import django_connection
from tests.fixtures.handles import url_for
from tests.fixtures.rows import query
from tests.fixtures.servers import SharedValkey
from tests.fixtures.services import RunService
from tests.fixtures.waiting import wait_for

SECONDS = 60
# The constraint is checked at commit.
EFFECT = "CREATE TABLE effect (task text, attempt int, UNIQUE (task, attempt) DEFERRABLE INITIALLY DEFERRED)"
INSERT = "INSERT INTO effect VALUES (:task, :attempt)"


def make_app(broker: str, results: str, dsn: str) -> Any:
    app = Celery("once", broker=broker, backend=results, set_as_current=False)
    app.conf.update(worker_hijack_root_logger=False, broker_connection_retry=False, task_acks_late=True)
    sessions = sessionmaker(create_engine(url_for(dsn, "psycopg")))
    options = {"base": OnceTask, "bind": True, "shared": False, "inbox_database": sessions, "max_retries": 2}
    auto = {**options, "autoretry_for": (ValueError, IntegrityError), "retry_kwargs": {"countdown": 0}}
    app.task(name="bill", **options)(bill)
    app.task(name="note", bind=True, shared=False)(note)
    app.task(name="fail", **options)(fail)
    app.task(name="try_again", **options)(try_again)
    app.task(name="fail_at_commit", **auto)(fail_at_commit)
    app.task(name="ship", **{**auto, "inbox_database": "default", "inbox_consumer": "shipping"})(ship)
    return app


def count_run(task: Any) -> None:
    """Count in Redis, where a rollback does not undo it."""
    task.app.backend.client.incr(f"runs of {task.name}")


def bill(self: Any, number: int) -> int:
    count_run(self)
    self.inbox_handle.execute(text(INSERT), {"task": "bill", "attempt": number})
    return number


def note(self: Any, number: int) -> None:
    """Not a OnceTask: runs as often as Celery calls it."""
    count_run(self)


def fail(self: Any) -> None:
    count_run(self)
    self.inbox_handle.execute(text(INSERT), {"task": "fail", "attempt": 0})
    raise KeyError("no")


def try_again(self: Any) -> None:
    count_run(self)
    self.inbox_handle.execute(text(INSERT), {"task": "try_again", "attempt": self.request.retries})
    if self.request.retries == 0:
        raise self.retry(countdown=0)


def fail_at_commit(self: Any) -> None:
    count_run(self)
    for _ in range(2 - min(self.request.retries, 1)):
        self.inbox_handle.execute(text(INSERT), {"task": "fail_at_commit", "attempt": self.request.retries})


def ship(self: Any) -> None:
    from django.db import connection

    count_run(self)
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO effect VALUES ('ship', %s)", [self.request.retries])
    if self.request.retries == 0:
        raise ValueError("not yet")


if "TEST_DATABASE" in os.environ:
    worker_database = django_connection(os.environ["TEST_DATABASE"])
    worker_database.__enter__()  # stays entered until the worker ends
    app = make_app(os.environ["TEST_BROKER"], os.environ["TEST_RESULTS"], os.environ["TEST_DATABASE"])


@pytest.fixture
def client(
    redis_broker: Broker, valkey_server: SharedValkey, database: Database, run_service: RunService
) -> Iterator[Any]:
    """The Celery application, with a running worker."""
    process = re.search(r"\d+$", os.environ.get("PYTEST_XDIST_WORKER", ""))
    results = urlsplit(valkey_server.url)._replace(path=f"/{8 + (int(process[0]) if process else 0) % 8}").geturl()
    with database.connect() as connection:
        connection.execute(EFFECT)
    worker = run_service(
        "celery", "-A", f"{__name__}:app", "worker", "--pool=solo", "--loglevel=INFO",
        "--without-gossip", "--without-mingle",
        env={"TEST_BROKER": redis_broker.url, "TEST_RESULTS": results, "TEST_DATABASE": database.dsn},
    )  # fmt: skip
    made = make_app(redis_broker.url, results, database.dsn)
    made.backend.client.flushdb()
    worker.wait_for_line("ready.", deadline_seconds=SECONDS)
    yield made
    made.backend.result_consumer.stop()
    made.backend.client.connection_pool.disconnect()
    made.close()


def runs(app: Any, *names: str) -> list[int]:
    return [int(app.backend.client.get(f"runs of {name}") or 0) for name in names]


@pytest.mark.timeout(240)
def test_a_task_that_is_delivered_again_is_skipped_and_a_failed_attempt_is_repeated(
    client: Any, database: Database
) -> None:
    names = ("bill", "note", "fail", "try_again", "fail_at_commit", "ship")
    ids = {name: str(uuid4()) if name != "bill" else "any text" for name in names}

    def deliver_everything() -> None:
        task = client.tasks["bill"]
        chain(task.s(7).set(task_id=ids["bill"]), client.tasks["note"].s()).apply_async()
        task.apply_async((8,), headers={"event_id": "same event"})
        for name in names[2:]:
            client.tasks[name].apply_async(task_id=ids[name])

    def wait_until_idle() -> None:
        # The pool is solo: the first ends after everything sent before it, the second after the messages these caused.
        for _ in range(2):
            client.tasks["note"].apply_async((0,)).get(timeout=SECONDS)

    with database.connect() as connection:
        deliver_everything()
        wait_until_idle()
        applied = [("bill", 7), ("bill", 8), ("fail_at_commit", 1), ("ship", 1), ("try_again", 1)]
        wait_for(lambda: len(query(connection, "SELECT task FROM effect")) == len(applied), deadline_seconds=SECONDS)
        assert runs(client, *names) == [2, 3, 1, 2, 2, 2]
        deliver_everything()
        wait_until_idle()
        # Only the task that failed ran again, and the chain did not continue a second time.
        assert runs(client, *names) == [2, 5, 2, 2, 2, 2]
        assert query(connection, "SELECT task, attempt FROM effect ORDER BY 1, 2") == applied
        found = query(connection, "SELECT consumer, event_id FROM outbox_inbox ORDER BY 1, 2")
    assert found == [
        ("bill", "any text"),
        ("bill", "same event"),
        ("fail_at_commit", ids["fail_at_commit"]),
        ("shipping", ids["ship"]),
        ("try_again", ids["try_again"]),
    ]
    assert client.AsyncResult(ids["bill"]).get(timeout=SECONDS) == 7


def test_a_task_that_was_not_delivered_runs_in_a_transaction_without_a_mark(database: Database) -> None:
    def connect() -> Any:
        return database.connect()

    def work(self: Any, fail: bool = False) -> str:
        self.inbox_handle.execute("INSERT INTO effect VALUES ('work', 0)")
        if fail:
            raise KeyError("undone")
        return "done"

    app = Celery("once", set_as_current=False)
    task = app.task(name="work", base=OnceTask, bind=True, shared=False, inbox_database=connect)(work)
    with database.connect() as connection:
        connection.execute("CREATE TABLE effect (task text, attempt int)")
        assert [task(), task.apply().get()] == ["done", "done"]
        with pytest.raises(KeyError, match="undone"):
            task(fail=True)
        assert query(connection, "SELECT count(*) FROM effect") == [2]
        assert query(connection, "SELECT event_id FROM outbox_inbox") == []


def test_a_missing_database_and_retry_without_throw_are_refused() -> None:
    def work() -> None: ...

    task = Celery("once", set_as_current=False).task(name="work", base=OnceTask, shared=False)(work)
    with pytest.raises(ValueError, match="work needs inbox_database: a Django alias or a SQLAlchemy sessionmaker"):
        task()
    with pytest.raises(ValueError, match=r"work: retry\(throw=False\) would commit the failed attempt"):
        task.retry(throw=False)
    with pytest.raises(RuntimeError, match="work is not running: there is no transaction"):
        _ = task.inbox_handle
