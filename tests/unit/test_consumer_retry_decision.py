"""What becomes of a message: decisions without a broker."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from aiormq.abc import DeliveredMessage
from pamqp.commands import Basic
from pamqp.header import ContentHeader

from outrider.consumer.delivery import ATTEMPT, ERROR, EXCHANGE, EXPIRES_AT, REASON, ROUTING_KEY, read_delivery
from outrider.consumer.durations import parse_duration
from outrider.consumer.errors import Expired, Reject, Undecodable
from outrider.consumer.retry_decision import Bury, Fate, Retry, after_failure, is_expired, message_for, replayed

NOW = 1_800_000_000.0
DELAYS = tuple(map(parse_duration, ("1s", "1m")))


def received(headers: dict[str, Any] | None = None, **properties: Any) -> DeliveredMessage:
    header = ContentHeader(properties=Basic.Properties(headers=headers or {}, **properties))
    deliver = Basic.Deliver("tag", 7, False, "shop", "order.placed")
    return DeliveredMessage(delivery=deliver, header=header, body=b"{}", channel=None)  # type: ignore[arg-type]


def fate_of(error: Exception, *, attempts: int = 0, expiration: str | None = None) -> Fate:
    delivery = read_delivery(received({ATTEMPT: attempts}, expiration=expiration), NOW)
    return after_failure(error, delivery, DELAYS, NOW)


def test_each_failure_has_its_delay_and_after_the_last_the_message_is_buried() -> None:
    error = ValueError("no\nline break")
    text = "ValueError: no line break"
    assert fate_of(error) == Retry(DELAYS[0], text)
    assert fate_of(error, attempts=1) == Retry(DELAYS[1], text)
    assert fate_of(error, attempts=2) == Bury("max attempts", text)


def test_what_trying_again_cannot_mend_is_buried_at_once() -> None:
    assert fate_of(Reject("no such customer")) == Bury("rejected", "no such customer")
    assert fate_of(Undecodable("not JSON")) == Bury("undecodable", "not JSON")
    assert fate_of(Expired("too late")) == Bury("expired", "too late")


def test_a_delay_that_ends_after_the_expiry_is_not_begun() -> None:
    assert isinstance(fate_of(ValueError("no"), expiration="1001"), Retry)
    assert fate_of(ValueError("no"), expiration="1000") == Bury("expired", "ValueError: no")


def test_the_time_to_live_goes_on_through_delays() -> None:
    first = read_delivery(received(expiration="5000"), NOW)
    assert first.expires_at == NOW + 5
    message = message_for(Retry(DELAYS[0], "no"), received(expiration="5000"), first)
    assert message.headers[EXPIRES_AT] == int((NOW + 5) * 1000)
    assert message.expiration is None
    again = read_delivery(received(dict(message.headers)), NOW + 4)
    assert again.expires_at == NOW + 5
    assert not is_expired(again, NOW + 4)
    assert is_expired(again, NOW + 5)


def test_where_the_broker_stamps_arrivals_the_time_to_live_counts_from_there() -> None:
    stamped = received({"timestamp_in_ms": int((NOW - 3) * 1000)}, expiration="5000")
    assert read_delivery(stamped, NOW).expires_at == NOW + 2


@pytest.mark.parametrize("expiration", ["", "soon", "-1", None])
def test_an_expiration_that_is_none_is_ignored(expiration: str | None) -> None:
    assert read_delivery(received(expiration=expiration), NOW).expires_at is None


def test_a_message_that_is_sent_on_remembers_where_it_came_from_and_looks_the_same_when_it_returns() -> None:
    original = received(
        {"mine": 1, "tracking_ids": ["a", "b"], "aggregate_type": "order", "aggregate_id": "7", "x-death": [{}]},
        message_id="b",
        message_type="order.placed",
        timestamp=datetime(2026, 1, 1, tzinfo=UTC),
        user_id="shop",
    )
    delivery = read_delivery(original, NOW)
    message = message_for(Retry(DELAYS[0], "no"), original, delivery)
    assert (message.headers["mine"], message.headers[ERROR]) == (1, "no")
    assert "x-death" not in message.headers
    assert message.user_id is None
    returned = DeliveredMessage(
        delivery=Basic.Deliver("tag", 8, False, "outrider.return", "billing"),
        header=ContentHeader(properties=message.properties),
        body=b"{}",
        channel=None,  # type: ignore[arg-type]
    )
    again = read_delivery(returned, NOW)
    assert (again.exchange, again.routing_key, again.attempt) == ("shop", "order.placed", 2)
    assert (again.event_id, again.event_type, again.aggregate) == ("b", "order.placed", ("order", "7"))
    assert (again.tracking_ids, again.timestamp) == (("a", "b"), delivery.timestamp)


def test_a_replayed_message_is_a_first_attempt_again() -> None:
    original = received({"mine": 1}, message_id="b", expiration="5000")
    buried = message_for(Bury("rejected", "no"), original, read_delivery(original, NOW))
    letter = received(dict(buried.headers), message_id="b")
    message = replayed(letter)
    assert message.headers == {"mine": 1, EXCHANGE: "shop", ROUTING_KEY: "order.placed"}
    assert REASON not in message.headers


def test_headers_of_the_wrong_kind_are_ignored() -> None:
    delivery = read_delivery(received({ATTEMPT: "x", ROUTING_KEY: 1, "tracking_ids": "a", EXPIRES_AT: "soon"}), NOW)
    assert (delivery.attempt, delivery.routing_key, delivery.tracking_ids, delivery.expires_at) == (
        1,
        "order.placed",
        (),
        None,
    )
