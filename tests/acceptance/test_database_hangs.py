"""
A database that hangs: a locked table, a commit that waits for a standby, a network that lets nothing through. Messages
do not wait for a table that they do not need, and a request to stop ends the process in any case.
"""

from __future__ import annotations

import json
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from outrider.embedded.postgres import Postgres
from outrider.embedded.process import free_port
from tests.fixtures.broker import Broker
from tests.fixtures.database import create_outbox_database
from tests.fixtures.proxy import FaultProxy
from tests.fixtures.servers import address_of
from tests.fixtures.services import RunService, Service
from tests.fixtures.stage import Stage
from tests.fixtures.waiting import wait_for

SHUTDOWN_SECONDS = 1
STOPPED_WITHIN_SECONDS = SHUTDOWN_SECONDS + 8
DUE: dict[str, Any] = {"owner": "scheduler", "next_attempt_at": "2020-01-01"}


def start_scheduler(stage: Stage, broker_url: str, **settings: Any) -> Service:
    scheduler = stage.run_service("outrider.retry_scheduler", env=stage.environment(broker_url, **settings))
    scheduler.wait_for_event("scheduler_active")
    return scheduler


@contextmanager
def locked(stage: Stage, table: str, mode: str) -> Iterator[None]:
    with stage.database.connect(autocommit=False) as connection:
        connection.execute(f"LOCK TABLE {table} IN {mode} MODE".encode())
        yield
        connection.rollback()


def readiness(port: int) -> dict[str, Any]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5) as response:
            return dict(json.load(response))
    except urllib.error.HTTPError as error:
        return dict(json.load(error))


def stop_in_time(service: Service) -> int:
    service.signal(signal.SIGTERM)
    return service.wait(STOPPED_WITHIN_SECONDS)


@pytest.fixture
def stage_without_standby(
    private_postgres: Callable[..., Postgres], run_service: RunService
) -> Iterator[tuple[Stage, Callable[[], None]]]:
    """A stage on a server of its own, and a function after which commits wait for a standby that does not exist."""
    server = private_postgres()
    stage = Stage(create_outbox_database(server.dsn()), run_service)
    stage.set_up()

    def lose_the_standby() -> None:
        with psycopg.connect(server.dsn(), autocommit=True) as administrator:
            administrator.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
            administrator.execute("SELECT pg_reload_conf()")
            wait_for(lambda: administrator.execute("SHOW synchronous_standby_names").fetchone() == ("nobody",))
        stage.connection.execute("SET synchronous_commit = local")

    yield stage, lose_the_standby
    stage.close()


# -- tables that messages do not need ---------------------------------------------------------------------------------


def test_a_locked_presence_table_delays_no_message(stage: Stage, rabbit: Broker) -> None:
    queue = rabbit.declare_queue()
    relay = stage.start_relay(rabbit.url)
    scheduler = start_scheduler(stage, rabbit.url)
    with locked(stage, "outbox_worker, outbox_inbox", "ACCESS EXCLUSIVE"):
        until = time.monotonic() + 8  # presence is refreshed every 5 s
        while time.monotonic() < until:
            stage.insert(queue, owner="relay")
            stage.insert(queue, **DUE)
            rabbit.get_all(queue, 2, deadline_seconds=3)
            stage.wait_until_empty(3)
        assert [stop_in_time(service) for service in (relay, scheduler)] == [0, 0]
    for service in (relay, scheduler):
        service.wait_for_event("maintenance_failed", task="show_presence")


def test_presence_returns_when_the_table_is_free_again(stage: Stage, rabbit: Broker) -> None:
    scheduler = start_scheduler(stage, rabbit.url)
    with locked(stage, "outbox_worker", "ACCESS EXCLUSIVE"):
        scheduler.wait_for_event("maintenance_failed", task="show_presence")
        stage.connection.execute("SET lock_timeout = '1ms'")
    fresh = "SELECT name FROM outbox_worker WHERE last_seen_at > clock_timestamp() - interval '1 second'"
    wait_for(lambda: stage.connection.execute(fresh.encode()).fetchall(), message="no presence is shown")


# -- a standby that is away -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("service", ["relay", "scheduler"])
def test_while_commits_wait_for_a_standby_readiness_says_so_and_a_stop_ends_in_time(
    stage_without_standby: tuple[Stage, Callable[[], None]], rabbit: Broker, service: str
) -> None:
    stage, lose_the_standby = stage_without_standby
    queue = rabbit.declare_queue()
    port = free_port()
    settings: dict[str, Any] = {"http_port": port, "shutdown_timeout_seconds": SHUTDOWN_SECONDS}
    start = stage.start_relay if service == "relay" else lambda *a, **s: start_scheduler(stage, *a, **s)
    running = start(rabbit.url, **settings)
    lose_the_standby()
    stage.insert(queue, **({} if service == "relay" else DUE))
    wait_for(lambda: "synchronous standby" in readiness(port)["reason"], message="readiness does not tell the cause")
    stop_in_time(running)


def test_a_statement_that_waits_for_a_standby_too_long_ends_and_the_service_goes_on(
    stage_without_standby: tuple[Stage, Callable[[], None]], rabbit: Broker
) -> None:
    stage, lose_the_standby = stage_without_standby
    queue = rabbit.declare_queue()
    relay = stage.start_relay(rabbit.url, statement_timeout_seconds=1)
    lose_the_standby()
    stage.insert(queue)
    assert "statement_timeout_seconds" in relay.wait_for_event("session_lost")["reason"]
    stage.wait_until_empty()
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
    wait_for(lambda: stage.connection.execute(waiting.encode()).fetchone() == (0,), message="backends are left waiting")


# -- a settlement that hangs ------------------------------------------------------------------------------------------


def test_a_settlement_that_waits_for_a_lock_too_long_is_a_database_fault(stage: Stage, rabbit: Broker) -> None:
    queue = rabbit.declare_queue()
    relay = stage.start_relay(rabbit.url, statement_timeout_seconds=1, shutdown_timeout_seconds=SHUTDOWN_SECONDS)
    with stage.database.connect(autocommit=False) as connection:
        ids = stage.insert_with(connection, queue)
        connection.commit()
        connection.execute("SELECT 1 FROM outbox WHERE event_id = ANY(%s) FOR UPDATE", [ids])
        relay.wait_for_event("session_lost", sqlstate="57014")
        wait_for(lambda: sum(each["event"] == "relay_active" for each in relay.events()) >= 2)
        connection.rollback()
    stage.wait_until_empty()
    assert relay.stop() == 0


def test_a_stop_ends_in_time_while_a_settlement_hangs(stage: Stage, rabbit: Broker) -> None:
    queue = rabbit.declare_queue()
    relay = stage.start_relay(rabbit.url, shutdown_timeout_seconds=SHUTDOWN_SECONDS, archive=True)
    scheduler = start_scheduler(stage, rabbit.url, shutdown_timeout_seconds=SHUTDOWN_SECONDS, archive=True)
    with stage.database.connect(autocommit=False) as connection:
        connection.execute("LOCK TABLE outbox_archive IN SHARE MODE")
        stage.insert(queue)
        stage.insert(queue, **DUE)
        rabbit.get_all(queue, 2)
        stop_in_time(relay)
        stop_in_time(scheduler)
        assert stage.count() == 2  # before the lock is released: PostgreSQL may go on with the statement then


# -- a network that lets nothing through ------------------------------------------------------------------------------


@pytest.mark.parametrize("service", ["relay", "scheduler"])
def test_a_stop_ends_in_time_while_the_database_does_not_answer(
    stage: Stage, rabbit: Broker, fault_proxy: Callable[[str, int], FaultProxy], service: str
) -> None:
    proxy = fault_proxy(*address_of(stage.database.dsn))
    queue = rabbit.declare_queue()
    settings: dict[str, Any] = {
        "database_url": proxy.through(stage.database.dsn),
        "replication_url": stage.database.dsn,
        "shutdown_timeout_seconds": SHUTDOWN_SECONDS,
    }
    start = stage.start_relay if service == "relay" else lambda *a, **s: start_scheduler(stage, *a, **s)
    running = start(rabbit.url, **settings)
    if service == "relay":
        running.wait_for_event("caught_up")
    proxy.blackhole()
    stage.insert(queue)
    if service == "relay":
        rabbit.get_all(queue, 1)
    stop_in_time(running)
    assert running.returncode in (0, 1)
