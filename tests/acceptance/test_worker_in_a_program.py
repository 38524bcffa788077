"""A Worker that a program runs itself: signals, logs without payloads, the program's logger and registry, heartbeat."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.fixtures.broker import Broker
from tests.fixtures.commands import ROOT
from tests.fixtures.services import RunService, Service
from tests.fixtures.waiting import wait_for

PROGRAM = """
import asyncio, logging, os, pathlib, sys
import structlog
from prometheus_client import CollectorRegistry, generate_latest
from outrider.consumer import Worker, consume

mode = sys.argv[1]
here = pathlib.Path(os.environ["HERE"])

@consume(queue=os.environ["QUEUE"])
async def slow(body: dict) -> None:
    secret = body["card"]
    (here / "began").touch()
    if body.get("fails"):
        raise ValueError("not now")
    while not (here / "release").exists():
        await asyncio.sleep(0.01)
    (here / "done").touch()

options = {}
if mode == "logging":
    logging.basicConfig(format="LOGGED %(name)s %(levelname)s %(message)s", level=logging.INFO)
    options["logger"] = logging.getLogger("shop.worker")
if mode == "structlog":
    options["logger"] = structlog.wrap_logger(
        structlog.PrintLogger(), processors=[structlog.processors.JSONRenderer()]
    ).bind(application="shop")
registry = CollectorRegistry()
worker = Worker(
    broker_url=os.environ["BROKER_URL"], consumers=[slow], retry_delays=("0s", "50ms"), registry=registry, **options
)
if mode == "own handler":
    import signal
    signal.signal(signal.SIGTERM, lambda *_: print("the program's own handler", flush=True))

asyncio.run(worker.run())
print("returned", flush=True)
print(generate_latest(registry).decode(), flush=True)
"""


@pytest.fixture
def queue(rabbit: Broker) -> Iterator[str]:
    name = f"{rabbit.prefix}.program"
    yield name
    rabbit.delete_queue(name)
    rabbit.delete_queue(f"{name}.dlq")


@pytest.fixture
def start(rabbit: Broker, queue: str, run_service: RunService, tmp_path: Path) -> Callable[..., Service]:
    (tmp_path / "program.py").write_text(PROGRAM)

    def start(mode: str = "plain", url: str = "") -> Service:
        env = {
            "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}",
            "QUEUE": queue,
            "HERE": str(tmp_path),
            "BROKER_URL": url or rabbit.url,
        }
        program = run_service("program", mode, env=env)
        program.wait_for_line("worker_active", deadline_seconds=60)
        return program

    return start


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_the_worker_and_run_returns(
    start: Callable[..., Service], rabbit: Broker, queue: str, tmp_path: Path, number: signal.Signals
) -> None:
    program = start()
    rabbit.publish(b'{"card": "4111-secret"}', routing_key=queue)
    wait_for((tmp_path / "began").exists)
    program.signal(number)
    program.wait_for_line("waiting_for_handlers")
    assert program.is_running
    (tmp_path / "release").touch()
    assert program.wait() == 0
    assert (tmp_path / "done").exists()
    assert "returned" in program.output()
    assert "Traceback" not in program.output()
    assert rabbit.depth(queue) == 0


def test_a_second_signal_ends_the_program_at_once(
    start: Callable[..., Service], rabbit: Broker, queue: str, tmp_path: Path
) -> None:
    program = start()
    rabbit.publish(b'{"card": "4111-secret"}', routing_key=queue, message_id="again")
    wait_for((tmp_path / "began").exists)
    program.signal(signal.SIGTERM)
    program.wait_for_line("waiting_for_handlers")
    program.signal(signal.SIGTERM)
    assert program.wait() == 128 + signal.SIGTERM
    assert [message.message_id for message in rabbit.get_all(queue, 1)] == ["again"]


def test_a_signal_that_the_program_handles_itself_is_left_to_it(start: Callable[..., Service]) -> None:
    program = start("own handler")
    program.signal(signal.SIGTERM)
    program.wait_for_line("the program's own handler")
    program.signal(signal.SIGINT)
    assert program.wait() == 0


@pytest.mark.parametrize("mode", ["plain", "logging", "structlog"])
def test_failures_are_logged_without_payloads_by_the_given_logger_and_counted_in_the_given_registry(
    start: Callable[..., Service], rabbit: Broker, queue: str, mode: str
) -> None:
    program = start(mode)
    rabbit.publish(b'{"card": "4111-secret", "fails": true}', routing_key=queue, message_id="e-1")
    program.wait_for_line("max attempts")
    assert program.stop() == 0
    output = program.output()
    assert ", in slow" in output  # the traceback is there,
    assert "4111-secret" not in output  # and no local variable
    assert f'outbox_consumer_processed_total{{consumer="{queue}",status="retried"}} 2.0' in output
    assert f'outbox_consumer_processed_total{{consumer="{queue}",status="max attempts"}} 1.0' in output
    if mode == "logging":
        assert "LOGGED shop.worker WARNING event='failed'" in output
    if mode == "structlog":
        failed = next(event for event in program.events() if event["event"] == "failed")
        assert (failed["application"], failed["event_id"]) == ("shop", "e-1")
        assert json.dumps(failed["exception"])


def test_the_heartbeat_of_the_url_is_used(
    start: Callable[..., Service], rabbit: Broker, rabbitmq_server: object
) -> None:
    server = getattr(rabbitmq_server, "embedded", None)
    if server is None:
        pytest.skip("connections are listed on the embedded RabbitMQ only")
    program = start(url=f"{rabbit.url.rstrip('/')}//?heartbeat=17".replace("///", "//"))
    listed = server.ctl("list_connections", "timeout", "client_properties")
    assert any("outrider worker" in line and line.startswith("17") for line in str(listed).splitlines()), listed
    assert program.stop() == 0
