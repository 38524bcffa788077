"""Schedulers, producers and commands through a real PgBouncer that gives every transaction another backend."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import asyncpg  # type: ignore[import-untyped]
import psycopg
import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from outrider.producer import EventStreams, Outbox
from outrider.producer.event import Event
from outrider.storage.decision import Burial
from outrider.storage.store import Store
from tests.fixtures.broker import Broker
from tests.fixtures.commands import run_outrider
from tests.fixtures.django import Site
from tests.fixtures.handles import url_for
from tests.fixtures.pgbouncer import PgBouncer
from tests.fixtures.stage import Stage
from tests.fixtures.waiting import wait_for

Start = Callable[..., PgBouncer]
FOLLOWS_PREPARED = (1, 21)
POOL = {"default_pool_size": "3", "max_client_conn": "200"}
EACH = 40
"""Messages of a producer: far more than the executions after which psycopg prepares a statement (5)."""


@pytest.fixture
def pooler(pgbouncer: Start, bare_stage: Stage) -> PgBouncer:
    return pgbouncer(bare_stage.database.server_url, settings=POOL)


@pytest.fixture
def pooled(pooler: PgBouncer, bare_stage: Stage) -> Iterator[Stage]:
    """The stage whose services and commands reach the database through the pooler; its own connection is direct."""
    dsn = pooler.through(bare_stage.database.dsn)
    made = run_outrider("setup", "--polling-only", env={"OUTRIDER_DATABASE_URL": dsn})
    assert made.returncode == 0, made.stderr
    yield bare_stage
    assert "prepared statement" not in query_log(pooler)


def query_log(pooler: PgBouncer) -> str:
    return "\n".join(line for line in pooler.log().splitlines() if "WARNING" in line or "ERROR" in line)


def doctor(dsn: str, **settings: str) -> dict[str, str]:
    """Its lines by check."""
    shown = run_outrider("doctor", env={"OUTRIDER_DATABASE_URL": dsn, **settings})
    assert shown.stderr == ""
    return {line[9:].partition(": ")[0]: line for line in shown.stdout.splitlines()}


# -- producers ---------------------------------------------------------------------------------------------------------


def with_psycopg(dsn: str, queue: str, prepare_threshold: int | None = None) -> None:
    with psycopg.connect(dsn, prepare_threshold=prepare_threshold) as connection:
        for n in range(EACH):
            with connection.transaction():
                Outbox("").publish(connection, "psycopg", {"n": n}, routing_key=queue)


def with_sqlalchemy(dsn: str, queue: str) -> None:
    engine = create_engine(url_for(dsn, "psycopg"), poolclass=NullPool, connect_args={"prepare_threshold": None})
    with engine.connect() as connection:
        for n in range(EACH):
            with Session(connection) as session, session.begin():
                Outbox("").publish(session, "sqlalchemy", {"n": n}, routing_key=queue, ordering_key="s")


def with_psycopg2(dsn: str, queue: str) -> None:
    with create_engine(url_for(dsn, "psycopg2"), poolclass=NullPool).connect() as connection:
        for n in range(EACH):
            with Session(connection) as session, session.begin():
                Outbox("").publish_many(
                    session, [{"event_type": "psycopg2", "payload": {"n": n}, "routing_key": queue}]
                )


def with_asyncpg(dsn: str, queue: str) -> None:
    async def publish() -> None:
        connection = await asyncpg.connect(dsn, statement_cache_size=0)
        for n in range(EACH):
            async with connection.transaction():
                await Outbox("").publish(connection, "asyncpg", {"n": n}, routing_key=queue)
        await connection.close()

    asyncio.run(publish())


PRODUCERS = (with_psycopg, with_sqlalchemy, with_psycopg2, with_asyncpg)


def test_schedulers_and_producers_share_a_few_backends_and_every_message_arrives(
    pooled: Stage, pooler: PgBouncer, redis_broker: Broker
) -> None:
    queue = redis_broker.declare_queue()
    dsn = pooler.through(pooled.database.dsn)
    env = pooled.environment(redis_broker.url, database_url=dsn)
    schedulers = [pooled.run_service("outrider.retry_scheduler", env={**env, "OUTRIDER_NAME": n}) for n in "ab"]
    for scheduler in schedulers:
        scheduler.wait_for_line("scheduler_active")
    with ThreadPoolExecutor(2 * len(PRODUCERS)) as threads:
        for done in [threads.submit(producer, dsn, queue) for producer in PRODUCERS * 2]:
            done.result(60)
    received = redis_broker.get_all(queue, 2 * len(PRODUCERS) * EACH)
    assert len({message.message_id for message in received}) == len(received)
    pooled.wait_until_empty()
    for scheduler in schedulers:
        assert scheduler.stop() == 0
        assert "prepared statement" not in scheduler.output()
        assert not [event for event in scheduler.events() if event.get("level") in ("warning", "error")]


def test_django_publishes_through_a_pooler(pooled: Stage, pooler: PgBouncer) -> None:
    site = Site(pooler.through(pooled.database.dsn), {"SLOT": None})
    program = (
        "from django.db import transaction; from outrider.producer.django.django_outbox import publish\n"
        "for n in range(20):\n    with transaction.atomic(): publish('django', {'n': n})"
    )
    for command in (["migrate"], ["shell", "-c", program], ["outbox_stats"]):
        done = site.manage(*command)
        assert done.returncode == 0, done.stderr
    assert pooled.count() == 20


def test_a_driver_that_prepares_statements_works_where_the_pooler_follows_them(
    pooled: Stage, pooler: PgBouncer
) -> None:
    if pooler.version < FOLLOWS_PREPARED:
        pytest.skip("this PgBouncer does not follow prepared statements")
    dsn = pooler.through(pooled.database.dsn)
    with ThreadPoolExecutor(4) as threads:
        for done in [threads.submit(with_psycopg, dsn, "q", prepare_threshold=0) for _ in range(4)]:
            done.result(60)
    assert pooled.count() == 4 * EACH


# -- commands ----------------------------------------------------------------------------------------------------------


def test_every_command_works_while_other_clients_use_the_same_backends(
    pooled: Stage, pooler: PgBouncer, redis_broker: Broker
) -> None:
    queue = redis_broker.declare_queue()
    dsn = pooler.through(pooled.database.dsn)
    env = pooled.environment(redis_broker.url, database_url=dsn, archive="true")

    def outrider(*arguments: str) -> Any:
        run = run_outrider(*arguments, "--json", env=env)
        assert run.returncode == 0, run.stderr
        return [json.loads(line) for line in run.stdout.splitlines()]

    store = Store(pooled.connection, "public")
    buried = [row["id"] for row in _insert(pooled, queue, 20)]
    store.bury([Burial(each, "rejected", "no", 1) for each in buried])
    events = [Event(event_type="placed", payload={"n": n}, routing_key=queue) for n in range(20)]
    with pooled.connection.transaction():
        EventStreams(Outbox("")).append(pooled.connection, "order:1", events)
    pending = [row["id"] for row in pooled.rows()]
    assert [each["id"] for each in outrider("pending", "list")] == pending
    assert outrider("pending", "show", str(pending[0]))[0]["event_type"] == "placed"
    assert len(outrider("dead", "list")) == 20
    assert outrider("dead", "list", "--grouped")[0]["messages"] == 20
    assert outrider("dead", "discard", str(buried[0]), "--yes")[0]["discarded"] == 1
    assert outrider("dead", "replay", "--all", "--rate", "1000")[0]["replayed"] == 19
    assert outrider("pending", "retry-now", "--all")[0]["due"] >= 20
    scheduler = pooled.run_service("outrider.retry_scheduler", env=env)
    (published,) = outrider("publish", "smoke", "--routing-key", queue, "--wait", "30")
    assert published["outcome"] == "delivered"
    pooled.wait_until_empty()
    assert outrider("replay", "--stream", "order:1", "--exchange", "", "--routing-key", queue)[0]["replayed"] == 20
    assert outrider("replay", "--archive", "--type", "smoke", "--rate", "1000")[0]["replayed"] == 1
    (state,) = outrider("status")
    assert state["archive"]["total"] >= 40
    assert scheduler.stop() == 0


def _insert(stage: Stage, queue: str, count: int) -> list[dict[str, Any]]:
    stage.insert(queue, count)
    return stage.rows()


# -- the doctor --------------------------------------------------------------------------------------------------------


def test_the_doctor_says_what_is_between_it_and_postgresql(pgbouncer: Start, stage: Stage) -> None:
    direct, server = stage.database.dsn, stage.database.server_url
    assert doctor(direct)["pooler"] == "ok       pooler: none: database_url leads to PostgreSQL itself"
    transactions = pgbouncer(server)
    name = "PgBouncer " + ".".join(map(str, transactions.version))
    line = doctor(transactions.through(direct))["pooler"]
    if transactions.version < FOLLOWS_PREPARED:
        assert line.startswith(f"warning  pooler: {name}")
        assert "in transaction mode, without prepared statements" in line
        assert "PgBouncer 1.21 or newer follows them" in line
    else:
        assert line.startswith(f"ok       pooler: {name}")
        assert "in transaction mode, with prepared statements" in line
    secret = pgbouncer(server, console=False)
    assert " pooler: a pooler in transaction mode" in doctor(secret.through(direct))["pooler"]
    sessions = pgbouncer(server, mode="session")
    assert doctor(sessions.through(direct))["pooler"].startswith(f"ok       pooler: {name}")
    assert doctor(sessions.through(direct))["pooler"].endswith("in session mode")
    lines = doctor(pgbouncer(server, mode="statement").through(direct))
    assert "in statement mode, which refuses transactions; set pool_mode = transaction" in lines["pooler"]
    assert lines["pooler"].startswith("failed")


def test_the_doctor_looks_at_replication_directly_and_says_when_a_pooler_is_in_between(
    pgbouncer: Start, stage: Stage
) -> None:
    through = pgbouncer(stage.database.server_url).through(stage.database.dsn)
    names = {"OUTRIDER_SLOT": stage.slot, "OUTRIDER_PUBLICATION": stage.publication}
    refused = doctor(through, **names)["replication connection"]
    assert refused.startswith("failed")
    assert "set replication_url to an address that connects directly to PostgreSQL" in refused
    allowed = doctor(through, **names, OUTRIDER_REPLICATION_URL=stage.database.dsn)["replication connection"]
    assert allowed.startswith("ok")


def test_a_session_pool_of_one_backend_does_not_hold_the_doctor_up(pgbouncer: Start, stage: Stage) -> None:
    pooler = pgbouncer(stage.database.server_url, mode="session", settings={"default_pool_size": "1"})
    assert doctor(pooler.through(stage.database.dsn))["pooler"].endswith("in session mode")


def test_a_relay_delivers_with_its_ordinary_connection_through_a_pooler(
    pgbouncer: Start, stage: Stage, redis_broker: Broker
) -> None:
    queue = redis_broker.declare_queue()
    pooler = pgbouncer(stage.database.server_url, settings=POOL)
    relay = stage.start_relay(
        redis_broker.url, database_url=pooler.through(stage.database.dsn), replication_url=stage.database.dsn
    )
    for n in range(EACH):
        stage.insert(queue, ordering_key=f"k{n % 3}")
    redis_broker.get_all(queue, EACH)
    stage.wait_until_empty()
    wait_for(lambda: stage.slot_state().get("active"))
    assert relay.stop() == 0
    assert "prepared statement" not in relay.output()
