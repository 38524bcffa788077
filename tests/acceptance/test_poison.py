"""
Poison: rows that cannot be delivered, stored or even described. Real services on real servers.

Each ends as a dead letter with a reason, and the rows beside it are delivered promptly and once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from tests.fixtures.broker import Broker
from tests.fixtures.poisoned import PROMPTLY_SECONDS, Poisoned, delivered
from tests.fixtures.proxy import FaultProxy
from tests.fixtures.servers import address_of
from tests.fixtures.stage import Stage
from tests.fixtures.waiting import wait_for

StartProxy = Callable[[str, int], FaultProxy]
FATAL = b"ends-the-connection"
FIXED_TEXT = "its error could not be stored: see the log of the service"

each_service = pytest.mark.parametrize("services", ["relay", "scheduler", "both"])


NOT_STORABLE = {
    "NUL": ('{"x": {"a\\u0000b": 1180591620717411303424}}', "a\\x00b"),
    "half a character": ('{"\\ud800": 1e400}', "\\ud800"),
}


@each_service
@pytest.mark.parametrize("case", NOT_STORABLE)
def test_a_row_whose_error_cannot_be_stored_as_it_is_costs_the_others_nothing(
    stage: Stage, rabbit: Broker, services: str, case: str
) -> None:
    headers, words = NOT_STORABLE[case]
    queue = rabbit.declare_queue()
    poisoned = Poisoned(stage, services, rabbit.url)
    good, bad = poisoned.insert_around(queue, headers=headers)
    poisoned.wait_until_empty()
    assert delivered(rabbit, queue) == Counter(good)
    reason, error = poisoned.dead()[bad]
    assert reason == "undecodable"
    assert words in error
    poisoned.check_running()


@each_service
def test_declarations_that_reset_the_connection_to_rabbitmq_are_never_sent(
    stage: Stage, rabbit: Broker, services: str
) -> None:
    queue = rabbit.declare_queue()
    poisoned = Poisoned(stage, services, rabbit.url)
    declarations = '[{"name": "endless", "queue_arguments": {"x-max-length": 1e400}}]'
    good, bad = poisoned.insert_around(queue, declarations=declarations)
    poisoned.wait_until_empty()
    assert delivered(rabbit, queue) == Counter(good)
    assert poisoned.dead()[bad] == ("undecodable", "Undecodable: declarations has a number that is not finite")
    poisoned.check_running()
    assert not any(event["event"] == "broker_outage" for each in poisoned.running for event in each.events())


@each_service
def test_a_declaration_during_which_connections_are_reset_fails_alone(
    stage: Stage, rabbit: Broker, fault_proxy: StartProxy, services: str
) -> None:
    queue = rabbit.declare_queue()
    proxy = fault_proxy(*address_of(rabbit.url))
    proxy.reset_on(FATAL)
    poisoned = Poisoned(stage, services, proxy.through(rabbit.url), max_attempts=1)
    good, bad = poisoned.insert_around(queue, declarations=f'[{{"name": "{FATAL.decode()}"}}]')
    poisoned.wait_until_empty()
    assert delivered(rabbit, queue) == Counter(good)
    reason, error = poisoned.dead()[bad]
    assert (reason, error.partition(":")[0]) == ("max attempts", "DeclarationRefused")
    poisoned.check_running()


@each_service
def test_a_message_because_of_which_connections_are_reset_is_found_and_fails_alone(
    stage: Stage, rabbit: Broker, fault_proxy: StartProxy, services: str
) -> None:
    queue = rabbit.declare_queue()
    proxy = fault_proxy(*address_of(rabbit.url))
    proxy.reset_on(FATAL)
    poisoned = Poisoned(stage, services, proxy.through(rabbit.url), max_attempts=1)
    connections = proxy.connections_accepted
    good, bad = poisoned.insert_around(queue, headers={"x": FATAL.decode()})
    poisoned.wait_until_empty()
    # What was in flight when a connection ended can arrive again; with the last one, only the cause was in flight.
    counts = delivered(rabbit, queue)
    assert counts.keys() == set(good)
    assert max(counts.values()) <= 3
    reason, error = poisoned.dead()[bad]
    assert (reason, error.partition(":")[0]) == ("max attempts", "BrokerCrashed")
    poisoned.check_running()
    assert proxy.connections_accepted - connections <= 6
    later = stage.insert(queue, 10)
    if poisoned.has_relay:
        poisoned.wait_until_empty()
        assert delivered(rabbit, queue) == Counter(later)


RAISES = """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    affected record;
BEGIN
    IF TG_OP = 'DELETE' THEN affected := OLD; ELSE affected := NEW; END IF;
    IF affected.event_type = 'cursed' THEN RAISE EXCEPTION 'not this one'; END IF;
    RETURN affected;
END $$;
"""


@each_service
@pytest.mark.parametrize(
    ("trigger", "columns"),
    [
        ("BEFORE INSERT ON outbox_dead_letter", {"properties": '{"priority": "high"}'}),
        ("BEFORE DELETE ON outbox", {}),
    ],
    ids=["burying it", "deleting it"],
)
def test_a_row_that_cannot_be_settled_is_set_aside_with_a_fixed_text(
    stage: Stage, rabbit: Broker, services: str, trigger: str, columns: dict[str, str]
) -> None:
    stage.connection.execute(RAISES)
    stage.connection.execute(f"CREATE TRIGGER refuse {trigger} FOR EACH ROW EXECUTE FUNCTION refuse()")
    queue = rabbit.declare_queue()
    poisoned = Poisoned(stage, services, rabbit.url)
    good, cursed = poisoned.insert_around(queue, event_type="cursed", **columns)
    wait_for(
        lambda: [row["last_error"] for row in stage.rows()] == [FIXED_TEXT],
        deadline_seconds=PROMPTLY_SECONDS,
        message=f"rows: {stage.rows()[:3]}",
    )
    if poisoned.has_relay:
        stage.wait_until_confirmed(PROMPTLY_SECONDS)
    (row,) = stage.rows()
    assert (row["event_id"], row["owner"], row["due"]) == (cursed, "scheduler", False)
    assert row["backoff_seconds"] > 1800
    assert delivered(rabbit, queue) == Counter(good if columns else [*good, cursed])
    poisoned.check_running()
    assert any(event["event"] == "row_not_settled" for each in poisoned.running for event in each.events())
