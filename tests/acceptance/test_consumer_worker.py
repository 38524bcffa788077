"""`outrider worker` and `outrider dlq`, as an operator runs them."""

from __future__ import annotations

import json
import os
import signal
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.broker import Broker
from tests.fixtures.commands import ROOT, run_outrider
from tests.fixtures.database import Database
from tests.fixtures.services import RunService, Service
from tests.fixtures.waiting import wait_for

MODULE = """
import asyncio, os, pathlib, time
import structlog
from outrider.consumer import Reject, consume

QUEUE = os.environ["QUEUE"]
here = pathlib.Path(os.environ["HERE"])
log = structlog.get_logger("shop")

@consume(queue=QUEUE, retry_delays=("100ms",))
async def handle(body: dict, event_id: str) -> None:
    log.info("handling", number=body["number"])
    if event_id == "poison":
        raise Reject("no such customer")
    if event_id == "failing":
        raise ValueError("out of order")
    (here / event_id).touch()

@consume(queue=QUEUE + ".slow")
def slow(event_id: str) -> None:
    (here / f"began-{event_id}").touch()
    while not (here / "release").exists():
        time.sleep(0.01)
    (here / event_id).touch()
"""


class Shop:
    """An application with consumers, in its own directory."""

    def __init__(self, broker: Broker, run_service: RunService, directory: Path) -> None:
        self.broker = broker
        self.queue = f"{broker.prefix}.shop"
        self.directory = directory
        self._run_service = run_service
        (directory / "shop_consumers.py").write_text(MODULE)

    def start(self, *arguments: str, **settings: str) -> Service:
        env = {
            "PYTHONPATH": f"{ROOT}{os.pathsep}{self.directory}",
            "QUEUE": self.queue,
            "HERE": str(self.directory),
            "OUTRIDER_BROKER_URL": self.broker.url,
            "OUTRIDER_LOG_FORMAT": "json",
            **{f"OUTRIDER_{name.upper()}": value for name, value in settings.items()},
        }
        return self._run_service("outrider", "worker", *arguments, env=env)

    def publish(self, event_id: str, queue: str = "") -> None:
        self.broker.publish(b'{"number": 1}', routing_key=self.queue + queue, message_id=event_id, type="order.placed")

    def wait_for(self, name: str) -> None:
        wait_for((self.directory / name).exists, deadline_seconds=60, message=f"{name} does not appear")


@pytest.fixture
def shop(rabbit: Broker, run_service: RunService, tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(rabbit, run_service, tmp_path)
    yield shop
    for suffix in ("", ".dlq", ".slow", ".slow.dlq"):
        rabbit.delete_queue(shop.queue + suffix)


def test_a_worker_handles_messages_reports_its_state_and_stops_on_sigterm(shop: Shop, database: Database) -> None:
    worker = shop.start("shop_consumers", http_port="0", database_url=database.dsn, name="w1")
    worker.wait_for_event("worker_active", deadline_seconds=60)
    get = _getter(worker.wait_for_event("http_listening")["port"])
    for event_id in ("good", "poison", "failing"):
        shop.publish(event_id)
    shop.wait_for("good")
    line = worker.wait_for_event("handling", deadline_seconds=60, event_id="good")
    assert (line["number"], line["consumer"], line["event_type"]) == (1, shop.queue, "order.placed")
    worker.wait_for_event("buried", deadline_seconds=60, event_id="poison", reason="rejected")
    worker.wait_for_event("buried", deadline_seconds=60, event_id="failing", reason="max attempts")
    assert get("/readyz")["role"] == "active"
    status = get("/status")
    assert (status["done"], status["rejected"], status["retried"]) == (1, 1, 1)
    with urllib.request.urlopen(f"http://127.0.0.1:{get.port}/metrics", timeout=10) as answer:
        metrics = answer.read().decode()
    assert f'outbox_consumer_processed_total{{consumer="{shop.queue}",status="rejected"}} 1.0' in metrics
    assert f'outbox_consumer_handler_seconds_count{{consumer="{shop.queue}"}} 4.0' in metrics
    with database.connect() as connection:
        seen = "SELECT kind, name, role FROM outbox_worker"
        wait_for(lambda: connection.execute(seen).fetchall() == [("worker", "w1", "active")], deadline_seconds=60)

        for event_id in ("one", "two"):
            shop.publish(event_id, ".slow")
        shop.wait_for("began-one")
        worker.signal(signal.SIGTERM)
        worker.wait_for_event("waiting_for_handlers", deadline_seconds=60)
        (shop.directory / "release").touch()
        assert worker.wait() == 0
        assert connection.execute(seen).fetchall() == []
    assert (shop.directory / "one").exists()

    env = {"OUTRIDER_BROKER_URL": shop.broker.url}
    listed = run_outrider("dlq", "list", shop.queue, "--json", env=env)
    letters = {letter["event_id"]: letter for letter in map(json.loads, listed.stdout.splitlines())}
    assert {name: (letter["reason"], letter["error"], letter["attempts"]) for name, letter in letters.items()} == {
        "poison": ("rejected", "no such customer", 1),
        "failing": ("max attempts", "ValueError: out of order", 2),
    }
    assert "number" not in listed.stdout
    replayed = run_outrider("dlq", "replay", shop.queue, "--reason", "rejected", env=env)
    assert (replayed.returncode, replayed.stdout) == (0, f"sent 1 back to {shop.queue}\n")
    (back,) = shop.broker.get_all(shop.queue, 1)
    assert (back.message_id, back.body) == ("poison", b'{"number": 1}')
    assert "x-outrider-reason" not in back.headers
    assert shop.broker.depth(f"{shop.queue}.dlq") == 1
    nowhere = run_outrider("dlq", "list", "nowhere", env=env)
    assert nowhere.returncode == 1
    assert "dead letters of nowhere: NOT_FOUND" in nowhere.stderr


def test_a_worker_that_is_killed_while_handling_loses_nothing(shop: Shop) -> None:
    first = shop.start("shop_consumers", "--threads", "1", "--prefetch", "5")
    first.wait_for_event("worker_active", deadline_seconds=60)
    for number in range(3):
        shop.publish(str(number), ".slow")
    shop.wait_for("began-0")
    first.kill()
    (shop.directory / "release").touch()
    second = shop.start("shop_consumers")
    for number in range(3):
        shop.wait_for(str(number))
    assert second.stop() == 0
    assert shop.broker.depth(f"{shop.queue}.slow") == 0


def test_a_failed_start_is_a_one_line_error_with_an_exit_status(shop: Shop) -> None:
    (shop.directory / "wants_inbox.py").write_text(
        "from outrider.consumer import consume\n@consume(queue='q', inbox=True)\ndef f(body): ...\n"
    )
    expected = {
        ("no_such_module",): (2, "there is no module no_such_module"),
        ("wants_inbox",): (2, "q has inbox=True: give the worker a database (inbox_database)"),
        ("shop_consumers", "--broker-url", "amqp://guest:hidden@127.0.0.1:1//"): (1, "ConnectionRefused"),
    }
    services = {arguments: shop.start(*arguments) for arguments in expected}
    for arguments, (status, text) in expected.items():
        service = services[arguments]
        assert service.wait(60) == status, arguments
        lines = [line for line in service.output().splitlines() if not line.startswith("{")]
        assert len(lines) == 1, service.output()
        assert lines[0].startswith("outrider: error: ")
        assert text in lines[0]
        assert "hidden" not in lines[0]


class _Getter:
    def __init__(self, port: int) -> None:
        self.port = port

    def __call__(self, path: str) -> dict[str, Any]:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as answer:
            answered: dict[str, Any] = json.load(answer)
            return answered


_getter: Callable[[int], _Getter] = _Getter
