"""The fixtures of other tests: databases, brokers and services are fresh, isolated and cleaned up."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import psycopg
import pytest

from tests.fixtures.broker import Broker, exists
from tests.fixtures.database import Database, create_outbox_database, drop_database
from tests.fixtures.proxy import FaultProxy
from tests.fixtures.servers import SharedPostgres, address_of
from tests.fixtures.services import RunService
from tests.fixtures.waiting import wait_for


def test_each_test_has_its_own_database(database: Database, dsn: str) -> None:
    with database.connect() as connection:
        assert connection.execute("SELECT current_database()").fetchone() == (database.name,)
        assert connection.execute("SELECT count(*) FROM outbox").fetchone() == (0,)
        assert connection.autocommit
    assert dsn == database.dsn


def test_a_database_is_dropped_with_its_slots_and_clients(postgres_server: SharedPostgres) -> None:
    database = create_outbox_database(postgres_server.url)
    left_open = database.connect()
    streaming = psycopg.pq.PGconn.connect(f"{database.dsn}?replication=database".encode())
    streaming.exec_(b"CREATE_REPLICATION_SLOT busy LOGICAL pgoutput")
    streaming.exec_(b"START_REPLICATION SLOT busy LOGICAL 0/0 (proto_version '1', publication_names 'none')")
    assert streaming.status == psycopg.pq.ConnStatus.OK
    drop_database(database)
    with psycopg.connect(postgres_server.url) as connection:
        names = connection.execute("SELECT datname FROM pg_database").fetchall()
        slots = connection.execute("SELECT slot_name FROM pg_replication_slots").fetchall()
    assert (database.name,) not in names
    assert ("busy",) not in slots
    left_open.close()
    streaming.finish()


def test_rabbit_returns_messages_with_headers_and_properties(rabbit: Broker) -> None:
    queue, exchange = rabbit.declare_queue(max_length=5), rabbit.declare_exchange(type="topic")
    rabbit.bind(queue, exchange, "orders.#")
    for number in range(3):
        rabbit.publish(
            b'{"n": %d}' % number,
            exchange=exchange,
            routing_key="orders.placed",
            headers={"n": number},
            message_id=f"m-{number}",
            content_type="application/json",
            content_encoding="utf-8",
        )
    assert rabbit.depth(queue) == 3
    first, second = rabbit.get_all(queue, 2)
    assert (first.json(), first.headers["n"], first.message_id) == ({"n": 0}, 0, "m-0")
    assert (second.routing_key, second.exchange, second.content_type) == ("orders.placed", exchange, "application/json")
    assert [message.message_id for message in rabbit.take_what_is_there(queue)] == ["m-2"]


def test_the_error_after_the_deadline_has_the_number_of_messages(rabbit: Broker) -> None:
    queue = rabbit.declare_queue()
    rabbit.publish(b"only one", routing_key=queue)
    with pytest.raises(AssertionError, match="1 of 2 messages"):
        rabbit.get_all(queue, 2, deadline_seconds=0.1)


def test_rabbit_purges_and_deletes(rabbit: Broker) -> None:
    queue = rabbit.declare_queue()
    rabbit.publish(b"x", routing_key=queue)
    rabbit.wait_for_depth(queue, 1)
    assert rabbit.purge(queue) == 1
    assert exists(rabbit, queue)
    rabbit.delete_queue(queue)
    assert not exists(rabbit, queue)


def test_a_new_vhost_is_empty(rabbit: Broker, rabbit_vhost: Broker) -> None:
    rabbit.declare_queue("celery")
    assert not exists(rabbit_vhost, "celery")
    rabbit_vhost.declare_queue("celery")
    rabbit_vhost.publish(b"task", routing_key="celery")
    assert [message.body for message in rabbit_vhost.get_all("celery", 1)] == [b"task"]
    assert rabbit.depth("celery") == 0


def test_redis_broker_returns_messages(redis_broker: Broker) -> None:
    queue, exchange = redis_broker.declare_queue(), redis_broker.declare_exchange()
    redis_broker.bind(queue, exchange, "key")
    redis_broker.publish(b'{"a": 1}', exchange=exchange, routing_key="key", headers={"h": "v"}, message_id="m-1")
    (message,) = redis_broker.get_all(queue, 1)
    assert (message.json(), message.headers["h"], message.message_id) == ({"a": 1}, "v", "m-1")
    assert redis_broker.depth(queue) == 0


def test_a_service_is_a_process_that_can_be_watched_and_signalled(run_service: RunService) -> None:
    service = run_service("http.server", "0", "--bind", "127.0.0.1", env={"OUTRIDER_EXAMPLE": "1"})
    assert "Serving HTTP" in service.wait_for_line("Serving HTTP")
    assert service.is_running
    assert service.stop() == -signal.SIGTERM


def test_json_lines_of_a_service_are_events(run_service: RunService) -> None:
    service = run_service("json.tool", "--json-lines", "--compact", "/dev/stdin")
    assert service.wait() == 0
    service = run_service("platform")
    assert service.wait() == 0
    assert service.events() == []
    with pytest.raises(AssertionError, match="never wrote 'no such text'"):
        service.wait_for_line("no such text")


def test_a_killed_service_has_ended(run_service: RunService) -> None:
    service = run_service("http.server", "0", "--bind", "127.0.0.1")
    service.kill()
    assert service.returncode == -signal.SIGKILL
    with pytest.raises(ProcessLookupError):
        os.kill(service.pid, 0)


def test_an_answer_of_postgres_can_be_lost_after_the_commit(
    database: Database, fault_proxy: Callable[[str, int], FaultProxy]
) -> None:
    proxy = fault_proxy(*address_of(database.dsn))
    with database.connect() as direct:
        direct.execute("CREATE TABLE done ()")
        connection = psycopg.connect(proxy.through(database.dsn), autocommit=True)
        proxy.blackhole("to_client")
        connection.pgconn.send_query(b"INSERT INTO done DEFAULT VALUES")
        connection.pgconn.flush()
        wait_for(lambda: direct.execute("SELECT FROM done").rowcount == 1, message="the row is not committed")
        proxy.cut()
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
        connection.close()
