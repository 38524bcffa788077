"""
From a transaction to a worker and back: captured tasks, canvas included, delivered by the real relay to real brokers,
executed by real worker processes, and their results read through every kind of backend.
"""

from __future__ import annotations

import gc
import os
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from urllib.parse import urlsplit
from uuid import uuid4

import pytest
from celery import chain, chord, group
from kombu import Exchange, Queue
from kombu.common import Broadcast

from tests.fixtures.broker import Broker
from tests.fixtures.celery_app import make_app, outbox
from tests.fixtures.database import Database
from tests.fixtures.handles import url_for
from tests.fixtures.servers import SharedValkey
from tests.fixtures.services import Service
from tests.fixtures.stage import Stage
from tests.fixtures.waiting import wait_for

START_SECONDS = 60
RESULT_SECONDS = 60
POLL_SECONDS = 0.05  # for backends that are polled
pytestmark = pytest.mark.timeout(300)


class Running(NamedTuple):
    app: Any
    worker: Service


Start = Callable[..., Running]


@pytest.fixture
def start(stage: Stage) -> Iterator[Start]:
    """Start a worker of a kind; yields the capturing application with the same addresses."""
    apps: list[Any] = []

    def run(
        broker: Broker, results: str, kind: str, *, quorum: bool = False, env: Mapping[str, str] | None = None
    ) -> Running:
        worker = stage.run_service(
            "celery", "-A", "tests.fixtures.celery_app", "worker", "--pool=solo", "--loglevel=INFO",
            "--without-gossip", "--without-mingle", "--without-heartbeat",
            env={
                "TEST_BROKER": broker.url,
                "TEST_RESULTS": results,
                "TEST_WORKER": kind,
                "TEST_QUEUES": "quorum" if quorum else "",
                **(env or {}),
            },
        )  # fmt: skip
        apps.append(make_app(broker.url, results, stock=False, quorum=quorum))
        return Running(apps[-1], worker)

    yield run
    gc.collect()  # results unsubscribe when they are collected, which needs the server
    for app in apps:
        if hasattr(app.backend, "result_consumer"):
            app.backend.result_consumer.stop()
        if hasattr(app.backend, "client"):
            app.backend.client.connection_pool.disconnect()
        app.close()


@pytest.fixture
def redis_results(valkey_server: SharedValkey) -> str:
    """A database of Valkey that no broker uses."""
    worker = re.search(r"\d+$", os.environ.get("PYTEST_XDIST_WORKER", ""))
    return urlsplit(valkey_server.url)._replace(path=f"/{8 + (int(worker[0]) if worker else 0) % 8}").geturl()


@pytest.fixture
def database_results(database: Database) -> str:
    return f"db+{url_for(database.dsn, 'psycopg')}"


@pytest.mark.parametrize(
    ("broker", "results", "kind"),
    [("rabbit_vhost", "database_results", "capturing"), ("redis_broker", "redis_results", "stock")],
    ids=["RabbitMQ, results in a database, a capturing worker", "Valkey, results in Valkey, a stock worker"],
)
def test_captured_tasks_and_canvas_run_on_a_real_worker(
    broker: str, results: str, kind: str, start: Start, stage: Stage, request: pytest.FixtureRequest
) -> None:
    address: Broker = request.getfixturevalue(broker)
    app, worker = start(address, request.getfixturevalue(results), kind)
    relay = stage.start_relay(address.url)
    worker.wait_for_line("ready.", deadline_seconds=START_SECONDS)
    add, total = app.tasks["shop.add"], app.tasks["shop.total"]
    boom, remember = app.tasks["shop.boom"], app.tasks["shop.remember"]
    linked, failed, undone = (f"{what}-{uuid4()}" for what in ("linked", "failed", "undone"))
    with stage.database.connect(autocommit=False) as connection, outbox.session(connection):
        remember.delay(undone)
        connection.rollback()
        expected: list[tuple[Any, Any]] = [
            (add.delay(1, 2), 3),
            (add.delay(3, 4), 7),
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
        assert result.get(timeout=RESULT_SECONDS, interval=POLL_SECONDS) == value
    with pytest.raises(ValueError, match="boom"):
        broken.get(timeout=RESULT_SECONDS, interval=POLL_SECONDS)
    for key in (linked, failed):
        assert app.AsyncResult(key).get(timeout=RESULT_SECONDS, interval=POLL_SECONDS) == "called"
    assert app.AsyncResult(undone).state == "PENDING"
    wait_for(lambda: stage.count() == 0, deadline_seconds=60)
    assert stage.rows("outbox_dead_letter") == []
    assert relay.is_running


def test_native_delayed_delivery_and_results_over_the_broker_work(
    rabbit_vhost: Broker, start: Start, stage: Stage
) -> None:
    app, worker = start(rabbit_vhost, "rpc://", "stock", quorum=True)
    worker.wait_for_line("ready.", deadline_seconds=START_SECONDS)  # it declares the delay exchanges
    add, journey = app.tasks["shop.add"], app.tasks["shop.journey"]
    with stage.database.connect(autocommit=False) as connection, outbox.session(connection):
        late = journey.apply_async(countdown=1)
        due = datetime.now(UTC) + timedelta(seconds=1)
    wait_for(lambda: datetime.now(UTC) > due, deadline_seconds=60)  # until its whole delay has passed in the outbox
    stage.start_relay(rabbit_vhost.url)
    with stage.database.connect(autocommit=False) as connection, outbox.session(connection):
        expected: list[tuple[Any, Any]] = [
            (add.delay(1, 2), 3),
            (add.delay(3, 4), 7),
            (journey.delay(), "work"),
            (late, "celery_delayed_delivery"),
            (add.apply_async((5, 6), countdown=2), 11),
            (group(add.s(n, n) for n in range(3)).apply_async(), [0, 2, 4]),
            (chain(add.s(1, 2), add.s(3)).apply_async(), 6),
        ]
        delayed = journey.apply_async(eta=datetime.now(UTC) + timedelta(seconds=5))
    for result, value in expected:
        assert result.get(timeout=RESULT_SECONDS) == value
    assert re.fullmatch(r"celery_delayed_\d+", delayed.get(timeout=RESULT_SECONDS))
    wait_for(lambda: stage.count() == 0, deadline_seconds=60)
    assert stage.rows("outbox_dead_letter") == []


def test_a_worker_continues_chains_and_finishes_chords_without_postgresql(
    redis_broker: Broker, redis_results: str, start: Start
) -> None:
    """The worker's Django alias points at a server that does not exist."""
    nowhere = {
        "TEST_DJANGO": "default",
        "DJANGO_SETTINGS_MODULE": "tests.fixtures.django_site.settings",
        "DJANGO_SITE_DSN": "postgresql://nobody@127.0.0.1:1/none",
    }
    _, worker = start(redis_broker, redis_results, "capturing", env=nowhere)
    stock = make_app(redis_broker.url, redis_results, stock=True)
    add, total = stock.tasks["shop.add"], stock.tasks["shop.total"]
    try:
        expected: list[tuple[Any, Any]] = [
            (chain(add.s(1, 2), add.s(3), add.s(4)).apply_async(), 10),
            (chord([add.s(n, n) for n in range(4)])(total.s()), 12),
        ]
        worker.wait_for_line("ready.", deadline_seconds=START_SECONDS)
        for result, value in expected:
            assert result.get(timeout=RESULT_SECONDS, interval=POLL_SECONDS) == value
    finally:
        stock.backend.result_consumer.stop()
        stock.backend.client.connection_pool.disconnect()
        stock.close()


def test_a_broadcast_and_celerys_events_leave_no_failed_row_when_no_queue_takes_them(
    rabbit_vhost: Broker, database_results: str, stage: Stage
) -> None:
    app = make_app(rabbit_vhost.url, database_results, stock=False)
    app.conf.task_send_sent_event = True
    app.conf.task_queues = [Queue("shop"), Broadcast("everyone")]
    with rabbit_vhost.channel() as channel:
        Exchange("everyone", type="fanout")(channel).declare()
    add = app.tasks["shop.add"]
    with stage.database.connect(autocommit=False) as connection, outbox.session(connection):
        add.apply_async((1, 2), queue="shop")
        add.apply_async((1, 2), queue="everyone")
        add.apply_async((3, 4), queue=Broadcast("everyone"))
        add.apply_async((5, 6), exchange="everyone", routing_key="")
        lost = add.apply_async((7, 8), exchange="amq.topic", routing_key="nowhere")
    assert stage.count() == 10  # five tasks, and a task-sent event for each
    stage.start_relay(rabbit_vhost.url)
    wait_for(lambda: [row["event_id"] for row in stage.rows() if row["attempts"]] == [lost.id], deadline_seconds=60)
    wait_for(lambda: stage.count() == 1, deadline_seconds=60)
    assert "NoRoute" in stage.rows()[0]["last_error"]
    app.close()
