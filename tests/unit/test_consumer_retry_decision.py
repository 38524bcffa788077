"""Retry decisions and the copies that are published, without a broker."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from aiormq.abc import DeliveredMessage
from pamqp.commands import Basic
from pamqp.header import ContentHeader

from outrider.consumer.delivery import ATTEMPT, ERROR, EXCHANGE, EXPIRES_AT, REASON, ROUTING_KEY, read_delivery
from outrider.consumer.errors import Expired, Reject, Undecodable
from outrider.consumer.retry_decision import (
    Bury,
    RetryAfterDelay,
    decide_after_failure,
    forwarded_properties,
    is_expired,
    replayed_properties,
)
from outrider.settings.durations import parse_duration

NOW = 1_800_000_000.0
DELAYS = tuple(map(parse_duration, ("1s", "1m")))


def received(headers: dict[str, Any] | None = None, **properties: Any) -> DeliveredMessage:
    header = ContentHeader(properties=Basic.Properties(headers=headers or {}, **properties))
    deliver = Basic.Deliver("tag", 7, False, "shop", "order.placed")
    return DeliveredMessage(delivery=deliver, header=header, body=b"{}", channel=None)  # type: ignore[arg-type]


def decide(error: Exception, *, attempts: int = 0, expiration: str | None = None) -> RetryAfterDelay | Bury:
    delivery = read_delivery(received({ATTEMPT: attempts}, expiration=expiration), NOW, "billing")
    return decide_after_failure(error, delivery, DELAYS, NOW)


def test_each_failure_has_its_delay_and_after_the_last_the_message_is_buried() -> None:
    error = ValueError("no\nline break")
    text = "ValueError: no line break"
    assert decide(error) == RetryAfterDelay(DELAYS[0], text)
    assert decide(error, attempts=1) == RetryAfterDelay(DELAYS[1], text)
    assert decide(error, attempts=2) == Bury("max attempts", text)


def test_rejected_undecodable_and_expired_messages_are_buried_at_once() -> None:
    assert decide(Reject("no such customer")) == Bury("rejected", "no such customer")
    assert decide(Undecodable("not JSON")) == Bury("undecodable", "not JSON")
    assert decide(Expired("too late")) == Bury("expired", "too late")


def test_a_message_that_would_expire_during_its_delay_is_buried() -> None:
    assert isinstance(decide(ValueError("no"), expiration="1001"), RetryAfterDelay)
    assert decide(ValueError("no"), expiration="1000") == Bury("expired", "ValueError: no")


def test_the_expiry_time_is_kept_across_delays() -> None:
    first = read_delivery(received(expiration="5000"), NOW, "billing")
    assert first.expires_at == NOW + 5
    copy = forwarded_properties(RetryAfterDelay(DELAYS[0], "no"), received(expiration="5000"), first)
    assert copy.headers is not None
    assert copy.headers[EXPIRES_AT] == int((NOW + 5) * 1000)
    assert copy.expiration is None
    again = read_delivery(received(dict(copy.headers)), NOW + 4, "billing")
    assert again.expires_at == NOW + 5
    assert not is_expired(again, NOW + 4)
    assert is_expired(again, NOW + 5)


def test_the_time_to_live_counts_from_the_arrival_time_if_the_broker_adds_it() -> None:
    stamped = received({"timestamp_in_ms": int((NOW - 3) * 1000)}, expiration="5000")
    assert read_delivery(stamped, NOW, "billing").expires_at == NOW + 2


@pytest.mark.parametrize("expiration", ["", "soon", "-1", None])
def test_an_invalid_expiration_is_ignored(expiration: str | None) -> None:
    assert read_delivery(received(expiration=expiration), NOW, "billing").expires_at is None


def test_a_message_that_returns_from_a_delay_has_its_original_fields() -> None:
    original = received(
        {"mine": 1, "tracking_ids": ["a", "b"], "aggregate_type": "order", "aggregate_id": "7", "x-death": [{}]},
        message_id="b",
        message_type="order.placed",
        timestamp=datetime(2026, 1, 1, tzinfo=UTC),
        user_id="shop",
    )
    delivery = read_delivery(original, NOW, "billing")
    copy = forwarded_properties(RetryAfterDelay(DELAYS[0], "no"), original, delivery)
    assert copy.headers is not None
    assert (copy.headers["mine"], copy.headers[ERROR]) == (1, "no")
    assert "x-death" not in copy.headers
    assert copy.user_id is None
    returned = DeliveredMessage(
        delivery=Basic.Deliver("tag", 8, False, "outrider.return", "billing"),
        header=ContentHeader(properties=copy),
        body=b"{}",
        channel=None,  # type: ignore[arg-type]
    )
    again = read_delivery(returned, NOW, "billing")
    assert (again.exchange, again.routing_key, again.attempt) == ("shop", "order.placed", 2)
    assert (again.event_id, again.event_type, again.aggregate) == ("b", "order.placed", ("order", "7"))
    assert (again.tracking_ids, again.timestamp) == (("a", "b"), delivery.timestamp)


def test_a_replayed_message_is_a_first_attempt_again() -> None:
    original = received({"mine": 1}, message_id="b", expiration="5000")
    buried = forwarded_properties(Bury("rejected", "no"), original, read_delivery(original, NOW, "billing"))
    assert buried.headers is not None
    assert buried.headers[REASON] == "rejected"
    letter = received(dict(buried.headers), message_id="b")
    copy = replayed_properties(letter, "billing")
    assert copy.headers == {"mine": 1, EXCHANGE: "shop", ROUTING_KEY: "order.placed"}


def test_a_replay_of_what_the_broker_buried_has_the_messages_own_routing_key() -> None:
    death = {"queue": "billing", "reason": "delivery_limit", "exchange": "shop", "routing-keys": ["order.placed"]}
    letter = received({"mine": 1, "x-death": [{"queue": "other", "routing-keys": ["x"]}, death, {"queue": "other"}]})
    copy = replayed_properties(letter, "billing")
    assert copy.headers == {"mine": 1, EXCHANGE: "shop", ROUTING_KEY: "order.placed"}
    for odd in ([], "x", [1], [{"queue": "billing"}], [{"queue": "billing", "routing-keys": [7]}]):
        assert replayed_properties(received({"x-death": odd}), "billing").headers == {}


def test_headers_of_the_wrong_kind_are_ignored() -> None:
    delivery = read_delivery(
        received({ATTEMPT: "x", ROUTING_KEY: 1, "tracking_ids": "a", EXPIRES_AT: "soon"}), NOW, "billing"
    )
    assert (delivery.attempt, delivery.routing_key, delivery.tracking_ids, delivery.expires_at) == (
        1,
        "order.placed",
        (),
        None,
    )
