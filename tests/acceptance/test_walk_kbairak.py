"""
A small application of kbairak/outbox moves over as docs/operations.md says, from the wheel.

Its library is not on the package index. What it leaves behind is made by hand: its table with unsent rows, and the
queue that its worker declared, with a message that the old worker has not handled.
"""

from __future__ import annotations

import textwrap

import psycopg
import pytest
from kombu import Exchange, Queue

from tests.fixtures.broker import Broker
from tests.fixtures.documentation import documented, documented_files
from tests.fixtures.waiting import wait_for
from tests.fixtures.wheel import Adopter, stop, wait_for_output

MANUAL = "docs/operations.md"

OLD_TABLE = """
CREATE TABLE outbox_table (id serial PRIMARY KEY, routing_key text NOT NULL, body bytea NOT NULL,
    tracking_ids jsonb NOT NULL, created_at timestamptz NOT NULL DEFAULT now(), expiration interval,
    send_after timestamptz NOT NULL, sent_at timestamptz);
INSERT INTO outbox_table (routing_key, body, tracking_ids, created_at, expiration, send_after, sent_at) VALUES
    ('user.created', '{"id": 1}', '["a"]', now(), NULL, now(), now()),
    ('user.created', '{"id": 2}', '["b"]', now(), NULL, now(), NULL),
    -- waited for longer than it may wait in the broker, which the old relay does not count
    ('user.created', '{"id": 3}', '["c"]', now() - interval '1 hour', '1 minute', now(), NULL),
    ('user.created', '{"id": 4}', '["d"]', now(), '1 minute', now() + interval '1 day', NULL);
"""

PROGRAM = """
import asyncio, os
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

async def main():
    engine = create_async_engine(os.environ["DATABASE_URL"])
    async with AsyncSession(engine) as session, session.begin():
{block}
    await engine.dispose()

asyncio.run(main())
"""


@pytest.fixture
def old_queue(rabbit_vhost: Broker) -> str:
    """The queue and the exchange as the old worker declares them."""
    dead = {"x-dead-letter-exchange": "outbox.dlx", "x-dead-letter-routing-key": "welcome", "x-queue-type": "quorum"}
    with rabbit_vhost.channel() as channel:
        exchange = Exchange("outbox", type="topic")
        Queue("welcome", exchange=exchange, routing_key="user.*", queue_arguments=dead)(channel).declare()
        Queue("welcome.dlq", queue_arguments={"x-queue-type": "quorum"})(channel).declare()
    return "welcome"


def test_an_application_moves_its_producer_its_rows_and_its_consumer(
    newcomer: Adopter, rabbit_vhost: Broker, old_queue: str
) -> None:
    address = newcomer.settings["OUTRIDER_DATABASE_URL"]
    newcomer.settings |= {"DATABASE_URL": address.replace("postgresql://", "postgresql+asyncpg://")}
    producer = textwrap.indent(documented(MANUAL, "# after"), " " * 8)
    newcomer.write({"signup.py": PROGRAM.format(block=producer)})
    newcomer.write(documented_files(MANUAL, "welcome.py", "unbind.py"))

    def old_worker_gets(count: int) -> list[int]:
        return [message.json()["id"] for message in rabbit_vhost.get_all(old_queue, count)]

    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute(OLD_TABLE)
        newcomer.run("outrider", "setup")
        services = newcomer.start_services()

        newcomer.run("python", "signup.py")
        assert old_worker_gets(1) == [123]

        connection.execute(documented(MANUAL, "BEGIN;", "sql"))
        assert sorted(old_worker_gets(2)) == [2, 3]
        assert connection.execute("SELECT id FROM outbox_table").fetchall() == [(1,)]

        newcomer.run("python", "signup.py")  # stays in the old queue: its worker is slow
        rabbit_vhost.wait_for_depth(old_queue, 1)
        stop(*services)
        newcomer.run("python", "signup.py")
        worker = newcomer.start("outrider", "worker", "welcome", until="worker_active")
        newcomer.run("python", "unbind.py")
        services = newcomer.start_services()
        wait_for_output(worker, "welcome 123")
        wait_for(lambda: connection.execute("SELECT count(*) FROM outbox").fetchone() == (1,))  # due tomorrow
        connection.execute("UPDATE outbox SET next_attempt_at = now()")
        wait_for_output(worker, "welcome 4")
    stop(*services, worker)
    assert worker.log_file.read_text().count("welcome 123") == 1
    assert (old_worker_gets(1), rabbit_vhost.depth(old_queue)) == ([123], 0)


def test_the_worker_refuses_the_name_of_the_old_queue_in_one_line(newcomer: Adopter, old_queue: str) -> None:
    newcomer.write({"welcome.py": documented(MANUAL, "# welcome.py").replace("shop.welcome", old_queue)})
    with pytest.raises(AssertionError, match="queue welcome exists with other arguments"):
        newcomer.run("outrider", "worker", "welcome")
