"""The relay delivers committed messages, and reports those that it cannot deliver. A real process on real servers."""

from __future__ import annotations

import pytest

from tests.fixtures.broker import Broker
from tests.fixtures.stage import Stage
from tests.fixtures.waiting import wait_for


@pytest.fixture(params=["rabbit", "redis_broker"])
def broker(request: pytest.FixtureRequest) -> Broker:
    """Every test that takes this runs on RabbitMQ and on Valkey."""
    broker: Broker = request.getfixturevalue(request.param)
    return broker


def test_a_committed_message_arrives_and_its_row_is_deleted(stage: Stage, broker: Broker) -> None:
    queue = broker.declare_queue()
    stage.start_relay(broker.url)
    headers = {"tenant": "acme", "nested": {"a": [1, None, "é"]}}
    (event_id,) = stage.insert(queue, headers=headers, properties={"correlation_id": "c-1", "priority": 3})
    (message,) = broker.get_all(queue, 1)
    assert message.json() == {"n": 0}
    assert message.headers.items() >= headers.items()
    assert message.message_id == event_id
    assert message.properties["correlation_id"] == "c-1"
    assert message.properties["type"] == "test.happened"
    assert message.properties["delivery_mode"] == 2
    assert (message.content_type, message.content_encoding) == ("application/json", "utf-8")
    stage.wait_until_empty()
    stage.wait_until_confirmed()


def test_a_rolled_back_message_never_arrives(stage: Stage, broker: Broker) -> None:
    queue = broker.declare_queue()
    stage.start_relay(broker.url)
    with stage.database.connect(autocommit=False) as connection:
        stage.insert_with(connection, queue, 5)
        connection.rollback()
        with connection.transaction():
            stage.insert_with(connection, queue, 1)
    stage.wait_until_confirmed()
    assert [message.json() for message in broker.take_what_is_there(queue)] == [{"n": 0}]


def test_messages_committed_while_no_relay_runs_arrive_when_one_starts(stage: Stage, rabbit: Broker) -> None:
    queue = rabbit.declare_queue()
    event_ids = stage.insert(queue, 300)
    stage.start_relay(rabbit.url)
    assert [message.message_id for message in rabbit.get_all(queue, 300)] == event_ids
    stage.wait_until_empty()


def test_a_transaction_larger_than_the_window_is_delivered(stage: Stage, rabbit: Broker) -> None:
    queue = rabbit.declare_queue()
    stage.start_relay(rabbit.url, window_messages=50, window_bytes=20_000)
    event_ids = stage.insert(queue, 3000)
    assert [message.message_id for message in rabbit.get_all(queue, 3000, 30)] == event_ids
    stage.wait_until_empty()
    stage.wait_until_confirmed()


def test_an_unroutable_message_fails_and_backs_off_while_others_are_delivered(stage: Stage, broker: Broker) -> None:
    queue = broker.declare_queue()
    nowhere = broker.declare_exchange()
    stage.start_relay(broker.url)
    (lost,) = stage.insert("no-such-queue", exchange=nowhere)
    good = stage.insert(queue, 50)
    assert [message.message_id for message in broker.get_all(queue, 50)] == good
    (row,) = wait_for(lambda: [row for row in stage.rows() if row["attempts"] == 1])
    assert row["event_id"] == lost
    assert row["owner"] == "scheduler"
    assert "no queue" in row["last_error"].lower() or "no_route" in row["last_error"].lower()
    assert 4.9 <= row["backoff_seconds"] <= 5.6  # soon: its consumer may be about to start
    stage.wait_until_confirmed()


def test_a_message_to_an_exchange_that_does_not_exist_fails_alone(stage: Stage, rabbit: Broker) -> None:
    queue = rabbit.declare_queue()
    relay = stage.start_relay(rabbit.url, declare=False)
    with stage.database.connect(autocommit=False) as connection:
        good = stage.insert_with(connection, queue, 20)
        (bad,) = stage.insert_with(connection, queue, exchange="no-such-exchange")
        good += stage.insert_with(connection, queue, 20)
        connection.commit()
    wait_for(lambda: stage.count() == 1)
    assert {message.message_id for message in rabbit.take_what_is_there(queue)} == set(good)
    (row,) = wait_for(lambda: [row for row in stage.rows() if row["attempts"]])
    assert row["event_id"] == bad
    assert "404" in row["last_error"]
    assert relay.is_running


def test_an_undecodable_row_is_buried_with_its_reason(stage: Stage, rabbit: Broker) -> None:
    queue = rabbit.declare_queue()
    stage.start_relay(rabbit.url)
    (poison,) = stage.insert(queue, properties={"priority": "high"})
    stage.insert(queue)
    rabbit.get_all(queue, 1)
    letters = wait_for(lambda: stage.rows("outbox_dead_letter"))
    assert [(letter["event_id"], letter["reason"]) for letter in letters] == [(poison, "undecodable")]
    assert "priority" in letters[0]["last_error"]
    stage.wait_until_empty()


def test_a_message_is_buried_after_its_last_attempt(stage: Stage, rabbit: Broker) -> None:
    stage.start_relay(rabbit.url, max_attempts=1)
    stage.insert("no-such-queue")
    letter = wait_for(lambda: stage.rows("outbox_dead_letter"))[0]
    assert (letter["reason"], letter["attempts"]) == ("max attempts", 1)


def test_an_error_named_in_reject_errors_buries_at_once(stage: Stage, rabbit: Broker) -> None:
    stage.start_relay(rabbit.url, reject_errors='["NoRoute"]')
    stage.insert("no-such-queue")
    letter = wait_for(lambda: stage.rows("outbox_dead_letter"))[0]
    assert (letter["reason"], letter["attempts"]) == ("rejected", 1)


def test_log_events_have_the_producers_context_and_never_a_payload(stage: Stage, rabbit: Broker) -> None:
    relay = stage.start_relay(rabbit.url)
    stage.insert(
        "no-such-queue", headers={"card": "4111-1111"}, context={"request_id": "r-17"}, event_type="card.charged"
    )
    event = relay.wait_for_event("refused", request_id="r-17", event_type="card.charged")
    assert event["error"] == "NoRoute"
    assert "4111" not in relay.output()
    assert '{"n"' not in relay.output()


def test_delayed_late_and_newer_messages_are_not_sent(stage: Stage, rabbit: Broker) -> None:
    queue = rabbit.declare_queue()
    stage.start_relay(rabbit.url)
    stage.insert(queue, owner="scheduler")
    stage.insert(queue, schema_version=32000)
    stage.insert(queue, next_attempt_at="2000-01-01")
    (fresh,) = stage.insert(queue)
    assert rabbit.get_all(queue, 1)[0].message_id == fresh
    stage.wait_until_confirmed()
    assert rabbit.depth(queue) == 0
    assert len(stage.rows()) == 3


def test_delivered_messages_are_archived_if_the_archive_is_on(stage: Stage, rabbit: Broker) -> None:
    queue = rabbit.declare_queue()
    stage.start_relay(rabbit.url, archive=True)
    event_ids = stage.insert(queue, 10, headers={"a": 1})
    stage.wait_until_empty()
    archived = stage.rows("outbox_archive")
    assert [row["event_id"] for row in archived] == event_ids
    assert archived[0]["headers"] == {"a": 1}
    assert bytes(archived[3]["payload"]) == b'{"n" : 3}'


def test_a_column_added_to_the_table_does_not_disturb_the_relay(stage: Stage, rabbit: Broker) -> None:
    queue = rabbit.declare_queue()
    stage.start_relay(rabbit.url)
    stage.insert(queue)
    stage.connection.execute("ALTER TABLE outbox ADD COLUMN shard int NOT NULL DEFAULT 7")
    stage.insert(queue)
    rabbit.get_all(queue, 2)
    stage.wait_until_empty()


def test_an_idle_outbox_in_a_busy_database_retains_no_wal(stage: Stage, rabbit: Broker) -> None:
    stage.start_relay(rabbit.url, status_interval_seconds=0.1)
    stage.connection.execute("CREATE TABLE busy (filler text)")
    for _ in range(20):
        stage.connection.execute("INSERT INTO busy SELECT repeat('x', 1000) FROM generate_series(1, 1000)")
    stage.wait_until_confirmed()


def test_one_database_can_have_several_outboxes(stage: Stage, rabbit: Broker) -> None:
    from outrider.storage.sql_files import script

    queue, name = rabbit.declare_queue(), 'we"ird %s schema'
    stage.connection.execute(script("schema.sql", schema=name))
    stage.connection.execute(script("setup/publication.sql", schema=name, publication='pub"2'))
    other = Stage(stage.database, stage.run_service, publication='pub"2')
    other.connection.execute(script("setup/slot.sql", slot=other.slot))
    stage.start_relay(rabbit.url)
    other.start_relay(rabbit.url, schema=name, max_attempts=1)
    stage.insert(queue, headers={"from": "first"})
    other.connection.execute('SET search_path = "we""ird %s schema"')
    other.insert(queue, headers={"from": "second"})
    other.insert("no-such-queue")
    assert {message.headers["from"] for message in rabbit.get_all(queue, 2)} == {"first", "second"}
    assert wait_for(lambda: other.rows("outbox_dead_letter"))
    stage.wait_until_empty()
    other.wait_until_empty()
    other.close()


def test_help_documents_every_setting(stage: Stage) -> None:
    from outrider.settings.database import setting_name
    from outrider.settings.relay import RelaySettings

    relay = stage.run_service("outrider.cdc_relay", "--help")
    assert relay.wait() == 0
    for field in set(RelaySettings.model_fields) - {"retry_rules"}:
        assert f"--{setting_name(field).replace('_', '-')}" in relay.output()
