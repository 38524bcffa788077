"""`@consume(..., inbox=True)`: the worker opens the transaction, and a redelivered message is skipped."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session, sessionmaker
from structlog.testing import capture_logs

from outrider.consumer import Consumer, Delivery
from outrider.errors import SettingsError
from outrider.producer import Outbox
from tests.fixtures.database import Database
from tests.fixtures.worker import Work

FIRST = "0b8f6c2e-6d5e-4c47-9f3b-1d2e3f405162"
SECOND = "0b8f6c2e-6d5e-4c47-9f3b-1d2e3f405163"


def test_an_async_handler_gets_the_connection_and_its_effects_happen_once(work: Work, database: Database) -> None:
    outbox = Outbox(exchange="shop")

    async def apply(body: dict[str, Any], event_id: str, attempt: int, connection: Any) -> None:
        await connection.execute("INSERT INTO effect VALUES (%s)", [event_id])
        await outbox.publish(connection, "order.billed", {}, aggregate="order:1")
        if event_id == SECOND and attempt == 1:
            raise ValueError("rolled back, and retried")

    with database.connect() as connection:
        connection.execute("CREATE TABLE effect (event_id uuid)")
        with work.worker(
            Consumer(apply, queue=work.queue, inbox=True, retry_delays=("50ms",)),
            database=lambda: psycopg.AsyncConnection.connect(database.dsn),
        ):
            for _ in range(3):
                work.publish(message_id=FIRST, headers={"tracking_ids": ["start", FIRST]})
            work.publish(message_id=SECOND)
            work.wait_until_processed("done", 2)
            work.wait_until_processed("duplicate", 2)
        effects = connection.execute("SELECT event_id::text FROM effect ORDER BY 1").fetchall()
        published = connection.execute("SELECT headers->'tracking_ids' FROM outbox ORDER BY id").fetchall()
    assert effects == [(FIRST,), (SECOND,)]
    # The handler's messages are part of the same transaction and continue the tracking chain.
    assert [chain[:-1] for (chain,) in published] == [["start", FIRST], [SECOND]]
    assert work.broker.depth(work.dead_letters) == 0


def test_a_plain_handler_gets_the_session(work: Work, database: Database) -> None:
    engine = create_engine(database.dsn.replace("postgresql://", "postgresql+psycopg://"))

    def apply(session: Session, event_id: str) -> None:
        session.execute(text("INSERT INTO effect VALUES (:event_id)"), {"event_id": event_id})

    with database.connect() as connection:
        connection.execute("CREATE TABLE effect (event_id uuid)")
        with work.worker(Consumer(apply, queue=work.queue, inbox=True), database=sessionmaker(engine)):
            work.publish(message_id=FIRST)
            work.publish(message_id=FIRST)
            work.wait_until_processed("duplicate")
        assert connection.execute("SELECT event_id::text FROM effect").fetchall() == [(FIRST,)]
    engine.dispose()


def test_a_message_without_an_id_is_buried_if_the_consumer_uses_the_inbox(work: Work, database: Database) -> None:
    def apply(body: Any) -> None:
        raise AssertionError("it must not be called")

    with work.worker(Consumer(apply, queue=work.queue, inbox=True), database=lambda: psycopg.connect(database.dsn)):
        work.publish()
        work.wait_until_processed("undecodable")
    (letter,) = work.broker.get_all(work.dead_letters, 1)
    assert "no message_id" in letter.headers["x-outrider-error"]


def test_a_database_of_the_wrong_kind_is_refused_at_the_start(work: Work, database: Database) -> None:
    engine = create_engine("postgresql+psycopg://")

    async def apply(body: Any) -> None: ...

    consumer = Consumer(apply, queue=work.queue, inbox=True)
    with pytest.raises(SettingsError, match="needs an asynchronous database"), work.worker(consumer, database=engine):
        pass
    with pytest.raises(SettingsError, match="give the worker a database"), work.worker(consumer):
        pass


def test_a_replayed_event_reaches_a_consumer_with_an_inbox_once_for_each_replay(work: Work, database: Database) -> None:
    seen: list[tuple[str, str | None]] = []

    def apply(message: Delivery) -> None:
        seen.append((message.event_id, message.replay_id))

    def connect() -> psycopg.Connection[Any]:
        return psycopg.connect(database.dsn)

    with work.worker(Consumer(apply, queue=work.queue, inbox=True), database=connect):
        work.publish(message_id=FIRST)
        for replay in ("one", "one", "two"):
            work.publish(message_id=FIRST, headers={"replayed": True, "replay_id": replay})
        work.wait_until_processed("done", 3)
        work.wait_until_processed("duplicate", 1)
    assert sorted(seen, key=str) == sorted([(FIRST, None), (FIRST, "one"), (FIRST, "two")], key=str)


def test_a_handler_that_wants_no_replays_gets_none_and_the_log_says_so(work: Work, database: Database) -> None:
    seen: list[str | None] = []

    async def apply(message: Delivery) -> None:
        seen.append(message.replay_id)

    with (
        capture_logs() as lines,
        work.worker(Consumer(apply, queue=work.queue, replays=False)),
    ):
        work.publish(message_id=FIRST, headers={"replay_id": "one"})
        work.publish(message_id=SECOND)
        work.wait_until_processed("done")
        work.wait_until_processed("duplicate")
    assert seen == [None]
    (line,) = [line for line in lines if line["event"] == "replay_skipped"]
    assert (line["event_id"], line["replay_id"]) == (FIRST, "one")
