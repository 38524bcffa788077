"""/status of both services: the service itself, and the same state of the outbox as `outrider status`."""

from __future__ import annotations

import json
import threading
import urllib.request
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from pydantic import SecretStr

from outrider.embedded.process import free_port
from outrider.runtime.state_reader import StateReader
from outrider.settings.database import DatabaseSettings
from tests.fixtures.broker import Broker
from tests.fixtures.commands import run_outrider
from tests.fixtures.database import Database
from tests.fixtures.proxy import FaultProxy
from tests.fixtures.servers import address_of
from tests.fixtures.stage import Stage
from tests.fixtures.waiting import wait_for


def status(port: int) -> dict[str, Any]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/status", timeout=30) as response:
        text = response.read().decode()
    assert response.status == 200
    assert "s3cret" not in text
    document = json.loads(text)
    assert isinstance(document, dict)
    return document


def test_both_services_report_their_state_and_the_outbox_and_an_error_without_the_database(
    stage: Stage, rabbit: Broker, fault_proxy: Callable[[str, int], FaultProxy]
) -> None:
    proxy = fault_proxy(*address_of(stage.database.dsn))
    through = urlsplit(proxy.through(stage.database.dsn))
    dsn = through._replace(netloc=f"postgres:s3cret@{through.hostname}:{through.port}").geturl()
    ports = free_port(), free_port()
    settings: dict[str, Any] = {"database_url": dsn, "connect_timeout_seconds": 2}
    relay = stage.start_relay(rabbit.url, name="relay-1", http_port=ports[0], **settings)
    environment = stage.environment(rabbit.url, name="scheduler-1", http_port=ports[1], **settings)
    scheduler = stage.run_service("outrider.retry_scheduler", env=environment)
    scheduler.wait_for_line("scheduler_active")
    # The head of the key comes first: without it the scheduler would unpark the second row.
    for next_attempt_at in ("2999-01-01", "infinity"):
        stage.insert("nowhere", owner="scheduler", next_attempt_at=next_attempt_at, ordering_key="k")

    def both_run() -> bool:
        return {worker["name"] for worker in status(ports[0])["state"]["workers"]} == {"relay-1", "scheduler-1"}

    wait_for(both_run, deadline_seconds=60)
    shown = json.loads(run_outrider("status", "--json", env=stage.environment(rabbit.url)).stdout)
    for port, service in zip(ports, ("cdc-relay", "retry-scheduler"), strict=True):
        document = status(port)
        assert (document["service"], document["role"]) == (service, "active")
        state = document["state"]
        assert state.keys() == shown.keys()
        assert state["queues"]["parked"] == shown["queues"]["parked"] == 1
        assert (state["slot"]["name"], state["slot"]["active"]) == (stage.slot, True)

    proxy.blackhole()  # accepts connections, and never answers
    assert status(ports[0])["state"]["error"].startswith("cannot read the state from the database: ")
    proxy.refuse()
    proxy.cut()

    def refused() -> bool:
        return "cannot read the state from the database: PostgreSQL: " in status(ports[1])["state"].get("error", "")

    wait_for(refused, deadline_seconds=60)
    assert status(ports[1])["service"] == "retry-scheduler"
    proxy.heal()
    wait_for(lambda: "queues" in status(ports[1])["state"], deadline_seconds=60)
    assert relay.is_running
    assert scheduler.is_running


def test_a_database_that_does_not_answer_blocks_no_caller_and_is_read_once_at_a_time(
    database: Database, fault_proxy: Callable[[str, int], FaultProxy]
) -> None:
    proxy = fault_proxy(*address_of(database.dsn))
    settings = DatabaseSettings(database_url=SecretStr(proxy.through(database.dsn)))
    reader = StateReader(settings, wait_seconds=0.2)
    proxy.blackhole()
    for _ in range(3):
        assert reader.read() == {"error": "cannot read the state from the database: no answer within 0.2 s"}
    assert sum(thread.name == "state" for thread in threading.enumerate()) == 1
    proxy.heal()
    wait_for(lambda: "queues" in reader.read(), deadline_seconds=60)
    wait_for(lambda: not any(thread.name == "state" for thread in threading.enumerate()), deadline_seconds=60)
