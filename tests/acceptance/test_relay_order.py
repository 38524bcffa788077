"""Messages of one ordering key arrive in the order of their commits, also across failures."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from outrider.embedded.postgres import Postgres
from tests.fixtures.broker import Broker
from tests.fixtures.database import create_outbox_database
from tests.fixtures.services import RunService
from tests.fixtures.stage import Stage
from tests.fixtures.waiting import wait_for

LOOK_UP = "AS k (ordering_key, id)"
"""Part of the query that looks up blocked keys (free_keys)."""


def test_many_keys_keep_their_order_at_full_speed(stage: Stage, rabbit: Broker) -> None:
    queue = rabbit.declare_queue()
    stage.start_relay(rabbit.url)
    for number in range(40):
        with stage.connection.transaction():
            for key in range(20):
                stage.insert(queue, ordering_key=f"key-{key}", headers={"key": key, "number": number})
    received = defaultdict(list)
    for message in rabbit.get_all(queue, 800, 30):
        received[message.headers["key"]].append(message.headers["number"])
    assert all(numbers == list(range(40)) for numbers in received.values())
    stage.wait_until_empty()


def test_a_relay_without_blocked_keys_runs_no_look_up(
    private_postgres: Callable[..., Postgres], run_service: RunService, rabbit: Broker
) -> None:
    server = private_postgres(settings={"log_statement": "all"})
    stage = Stage(create_outbox_database(server.dsn()), run_service)
    stage.set_up()
    queue = rabbit.declare_queue()
    relay = stage.start_relay(rabbit.url)
    relay.wait_for_event("caught_up")
    before = len(server.log())
    stage.insert(queue, 50, ordering_key="a")
    stage.wait_until_empty()
    statements = server.log()[before:]
    assert "DELETE FROM" in statements
    assert LOOK_UP not in statements
    (lost,) = stage.insert("no-such-queue", ordering_key="a")
    wait_for(lambda: [row for row in stage.rows() if row["event_id"] == lost and row["attempts"]])
    # Until the failure is settled, the relay knows without a query that the key is blocked.
    wait_for(lambda: stage.insert(queue, ordering_key="a") and LOOK_UP in server.log()[before:])
    stage.close()


def test_a_failed_message_blocks_its_key_and_no_other(stage: Stage, rabbit: Broker) -> None:
    queue = rabbit.declare_queue()
    stage.start_relay(rabbit.url)
    (first,) = stage.insert("no-such-queue", ordering_key="a")
    wait_for(lambda: [row for row in stage.rows() if row["attempts"] == 1])
    behind = stage.insert(queue, 3, ordering_key="a")
    others = stage.insert(queue, 3, ordering_key="b")
    assert [message.message_id for message in rabbit.get_all(queue, 3)] == others
    stage.wait_until_confirmed()
    rows = stage.rows()
    assert [row["event_id"] for row in rows] == [first, *behind]
    assert [(row["owner"], row["attempts"]) for row in rows] == [("scheduler", n) for n in (1, 0, 0, 0)]
    assert rabbit.depth(queue) == 0


def test_messages_behind_a_failed_one_are_handed_over_unsent(stage: Stage, rabbit: Broker) -> None:
    queue = rabbit.declare_queue()
    stage.start_relay(rabbit.url)
    with stage.connection.transaction():  # all of them are in the window before the first has an outcome
        stage.insert("no-such-queue", ordering_key="a")
        stage.insert(queue, 50, ordering_key="a")
    rows = wait_for(lambda: [row for row in stage.rows() if row["owner"] == "scheduler"][50:] and stage.rows())
    assert [row["attempts"] for row in rows] == [1] + [0] * 50
    assert rabbit.depth(queue) == 0


def test_a_key_is_sent_again_once_it_has_no_earlier_row(stage: Stage, rabbit: Broker) -> None:
    queue = rabbit.declare_queue()
    stage.start_relay(rabbit.url)
    stage.insert("no-such-queue", ordering_key="a")
    wait_for(lambda: [row for row in stage.rows() if row["attempts"] == 1])
    stage.connection.execute("DELETE FROM outbox")  # as if the scheduler had delivered it
    (fresh,) = stage.insert(queue, ordering_key="a")
    assert rabbit.get_all(queue, 1)[0].message_id == fresh
    stage.wait_until_empty()


def test_a_relay_that_starts_loads_the_blocked_keys(stage: Stage, rabbit: Broker) -> None:
    queue = rabbit.declare_queue()
    relay = stage.start_relay(rabbit.url)
    stage.insert("no-such-queue", ordering_key="a")
    wait_for(lambda: [row for row in stage.rows() if row["attempts"] == 1])
    relay.kill()
    stage.start_relay(rabbit.url)
    stage.insert(queue, ordering_key="a")
    wait_for(lambda: [row for row in stage.rows() if row["owner"] == "scheduler"][1:])
    assert rabbit.depth(queue) == 0


def test_a_late_row_blocks_its_key(stage: Stage, rabbit: Broker) -> None:
    queue = rabbit.declare_queue()
    stage.start_relay(rabbit.url)
    stage.insert(queue, ordering_key="a", next_attempt_at="2000-01-01")
    stage.insert(queue, ordering_key="a")
    rows = wait_for(lambda: [row for row in stage.rows() if row["owner"] == "scheduler"])
    assert len(rows) == 1
    assert rabbit.depth(queue) == 0
