"""The WAL holds rows from before and after a change of the table: the relay sends what it can read, and never stops."""

from __future__ import annotations

from tests.fixtures.broker import Broker
from tests.fixtures.commands import run_outrider
from tests.fixtures.stage import Stage


def test_rows_from_before_a_column_was_added_are_sent_with_its_default(stage: Stage, rabbit: Broker) -> None:
    queue = rabbit.declare_queue()
    stage.connection.execute("ALTER TABLE outbox DROP COLUMN context, DROP COLUMN headers, DROP COLUMN content_type")
    before = stage.insert(queue, 2)
    stage.connection.execute(
        "ALTER TABLE outbox ADD COLUMN context json, ADD COLUMN headers json NOT NULL DEFAULT '{}', "
        "ADD COLUMN content_type text NOT NULL DEFAULT 'application/json', ADD COLUMN unknown int DEFAULT 7"
    )
    after = stage.insert(queue, 2, headers={"number": 1})
    relay = stage.start_relay(rabbit.url)
    messages = rabbit.get_all(queue, 4)
    assert [message.message_id for message in messages] == before + after
    assert {message.content_type for message in messages} == {"application/json"}
    assert [message.headers.get("number") for message in messages] == [None, None, 1, 1]
    stage.wait_until_empty()
    stage.connection.execute("ALTER TABLE outbox DROP COLUMN unknown")
    (last,) = stage.insert(queue)
    assert rabbit.get_all(queue, 1)[0].message_id == last
    assert relay.stop() == 0


def test_rows_without_a_needed_column_are_left_to_the_scheduler_in_order_and_the_slot_advances(
    stage: Stage, rabbit: Broker
) -> None:
    queue = rabbit.declare_queue()
    stage.connection.execute("ALTER TABLE outbox RENAME COLUMN routing_key TO route")
    unreadable = stage.connection.execute(
        "INSERT INTO outbox (event_type, route, payload, ordering_key) VALUES ('test.happened', %s, '{}', 'a') "
        "RETURNING event_id::text",
        [queue],
    ).fetchone()
    assert unreadable is not None
    stage.connection.execute("ALTER TABLE outbox RENAME COLUMN route TO routing_key")
    (behind,) = stage.insert(queue, ordering_key="a")
    (other,) = stage.insert(queue, ordering_key="b")
    relay = stage.start_relay(rabbit.url)
    assert rabbit.get_all(queue, 1)[0].message_id == other
    error = relay.wait_for_event("relation_not_readable")
    assert error["reason"] == "table public.outbox is published without routing_key"
    assert "outrider setup" in error["remedy"]
    stage.wait_until_confirmed()
    assert [(row["event_id"], row["owner"]) for row in stage.rows()] == [
        (unreadable[0], "relay"),
        (behind, "scheduler"),
    ]
    stage.connection.execute("UPDATE outbox SET next_attempt_at = clock_timestamp()")
    stage.run_service("outrider.retry_scheduler", env=stage.environment(rabbit.url, poll_seconds=0.2))
    assert [message.message_id for message in rabbit.get_all(queue, 2)] == [unreadable[0], behind]
    assert relay.is_running


def test_the_doctor_names_columns_that_the_table_lacks(stage: Stage) -> None:
    stage.connection.execute("ALTER TABLE outbox RENAME COLUMN routing_key TO route")
    run = run_outrider("doctor", env={"OUTRIDER_DATABASE_URL": stage.database.dsn, "OUTRIDER_SLOT": stage.slot})
    (finding,) = [line for line in run.stdout.splitlines() if "columns: " in line]
    assert run.returncode == 1
    assert finding.startswith("failed")
    assert "public.outbox lacks routing_key; add them as sql/schema.sql has them" in finding
