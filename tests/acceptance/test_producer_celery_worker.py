"""
From a transaction to a worker: captured tasks, canvas included, delivered by the real scheduler to real brokers and
executed by real worker processes.
"""

from __future__ import annotations

import gc
import os
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import pytest
from celery import chain, chord, group

from outbox.sqlfiles import script
from tests.fixtures.broker import Broker
from tests.fixtures.celery_app import make_app, outbox
from tests.fixtures.database import Database
from tests.fixtures.servers import SharedValkey
from tests.fixtures.services import RunService
from tests.fixtures.waiting import wait_for

RESULT_SECONDS = 40
pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def results_url(valkey_server: SharedValkey) -> str:
    """A database of Valkey that no broker uses."""
    worker = re.search(r"\d+$", os.environ.get("PYTEST_XDIST_WORKER", ""))
    return urlsplit(valkey_server.url)._replace(path=f"/{8 + (int(worker[0]) if worker else 0) % 8}").geturl()


@pytest.fixture(params=["RabbitMQ", "Valkey"])
def broker(request: pytest.FixtureRequest) -> Broker:
    name = "rabbit_vhost" if request.param == "RabbitMQ" else "redis_broker"
    found: Broker = request.getfixturevalue(name)
    return found


@pytest.fixture
def start(
    broker: Broker, results_url: str, database: Database, run_service: RunService
) -> Iterator[Callable[[str], Any]]:
    """Start a worker of a kind, and a scheduler that delivers; gives the capturing application."""
    apps: list[Any] = []

    def run(kind: str) -> Any:
        with database.connect() as connection:
            connection.execute(script("setup/handover_after.sql", schema="public", handover_after="0 seconds"))
        worker = run_service(
            "celery", "-A", "tests.fixtures.celery_app", "worker", "--pool=solo", "--loglevel=INFO",
            "--without-gossip", "--without-mingle",
            env={"TEST_BROKER": broker.url, "TEST_RESULTS": results_url, "TEST_WORKER": kind},
        )  # fmt: skip
        run_service(
            "retry_scheduler",
            env={
                "OUTBOX_DATABASE_URL": database.dsn,
                "OUTBOX_BROKER_URL": broker.url,
                "OUTBOX_POLL_SECONDS": "0.1",
                "OUTBOX_LOG_FORMAT": "json",
            },
        )
        worker.wait_for_line("ready.", deadline_seconds=60)
        apps.append(make_app(broker.url, results_url, stock=False))
        return apps[0]

    yield run
    gc.collect()  # results that die unsubscribe: while the server is still there
    for app in apps:
        app.backend.result_consumer.stop()
        app.backend.client.connection_pool.disconnect()
        app.close()


@pytest.mark.parametrize("kind", ["stock", "capturing"])
def test_captured_tasks_and_canvas_run_on_a_real_worker(
    kind: str, start: Callable[[str], Any], database: Database
) -> None:
    app = start(kind)
    add, total = app.tasks["shop.add"], app.tasks["shop.total"]
    boom, remember = app.tasks["shop.boom"], app.tasks["shop.remember"]
    linked, failed, undone = (f"{what}-{uuid4()}" for what in ("linked", "failed", "undone"))
    with database.connect(autocommit=False) as connection, outbox.session(connection):
        remember.delay(undone)
        connection.rollback()
        expected: list[tuple[Any, Any]] = [
            (add.delay(1, 2), 3),
            (add.apply_async((1, 2), serializer="msgpack", compression="gzip", priority=3), 3),
            (add.apply_async((1, 2), countdown=1, expires=120), 3),
            (add.apply_async((1, 2), eta=datetime.now(UTC) + timedelta(seconds=0.5)), 3),
            (app.send_task("shop.add", args=(4, 5)), 9),
            (chain(add.s(1, 2), add.s(3), add.s(4)).apply_async(), 10),
            (group(add.s(n, n) for n in range(4)).apply_async(), [0, 2, 4, 6]),
            (chord([add.s(n, n) for n in range(4)])(total.s()), 12),
            (chain(add.s(1, 1), group(add.s(1), add.s(2)), total.s()).apply_async(), 7),
            (add.chunks([(n, n) for n in range(4)], 2).apply_async(), [[0, 2], [4, 6]]),
            (add.starmap([(1, 2), (3, 4)]).apply_async(), [3, 7]),
            (app.tasks["shop.twice"].delay(), 1),
            (app.tasks["shop.delegate"].delay(20, 22), 42),
            (add.apply_async((1, 2), link=remember.s(linked)), 3),
        ]
        broken = boom.apply_async(link_error=remember.si(failed))
        connection.commit()
    for result, value in expected:
        assert result.get(timeout=RESULT_SECONDS) == value
    with pytest.raises(ValueError, match="boom"):
        broken.get(timeout=RESULT_SECONDS)
    for key in (linked, failed):
        wait_for(lambda key=key: app.backend.get(key) == b"called", deadline_seconds=20)  # type: ignore[misc]
    assert app.backend.get(undone) is None
    with database.connect() as connection:
        wait_for(lambda: connection.execute("SELECT count(*) FROM outbox").fetchone() == (0,))
        assert connection.execute("SELECT reason, last_error FROM outbox_dead_letter").fetchall() == []
