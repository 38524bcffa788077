"""Rows are converted to broker messages, or are undecodable."""

from __future__ import annotations

import json
import uuid
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from math import inf
from typing import Any

import amqp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kombu.transport.native_delayed_delivery import calculate_routing_key
from kombu.utils.json import dumps

from outrider.delivery.amqp_properties import encode_properties
from outrider.delivery.broker_message import MAX_EXPIRATION_MILLISECONDS, BrokerMessage, to_broker_message
from outrider.delivery.declarations import parse_declarations
from outrider.errors import UndecodableMessage
from outrider.storage.server_time import to_datetime
from tests.fixtures.messages import NOW, make_message

SECOND = 1_000_000


def test_a_plain_row_gets_the_defaults_of_an_event() -> None:
    message = make_message(exchange="shop", routing_key="order.placed", created_at=NOW)
    wire = to_broker_message(message, NOW)
    assert (wire.exchange, wire.routing_key, wire.headers) == ("shop", "order.placed", {})
    assert wire.properties == {
        "content_type": "application/json",
        "content_encoding": "utf-8",
        "delivery_mode": 2,
        "message_id": message.event_id,
        "type": "order.placed",
        "timestamp": int(to_datetime(NOW).timestamp()),
    }


def test_properties_of_the_row_win_over_the_defaults_and_null_does_not() -> None:
    given_properties = {"delivery_mode": 1, "message_id": "m", "type": None, "priority": 3, "user_id": "u"}
    properties = to_broker_message(make_message(properties=given_properties), NOW).properties
    assert (properties["delivery_mode"], properties["message_id"], properties["priority"]) == (1, "m", 3)
    assert (properties["type"], properties["user_id"]) == ("order.placed", "u")


def test_the_log_context_of_the_producer_travels_as_a_header_unless_it_is_none() -> None:
    assert to_broker_message(make_message(context='{"request": "r-1"}'), NOW).headers == {
        "log_context": {"request": "r-1"}
    }
    own = make_message(context='{"request": "r-1"}', headers={"log_context": "mine"})
    assert to_broker_message(own, NOW).headers == {"log_context": "mine"}
    for no_context in ("[1]", "null", "[" * 100_000):
        assert to_broker_message(make_message(context=no_context), NOW).headers == {}


def test_properties_that_amqp_does_not_know_are_kept_for_other_transports() -> None:
    assert to_broker_message(make_message(properties={"stamped_headers": ["a"]}), NOW).properties[
        "stamped_headers"
    ] == ["a"]


def test_values_that_kombu_marked_come_back_as_they_were() -> None:
    values = {
        "id": uuid.uuid4(),
        "at": datetime(2026, 1, 2, tzinfo=UTC),
        "price": Decimal("1.50"),
        "raw": b"\x00\xff",
        "nested": {"list": [1, None, "ü"]},
    }
    assert to_broker_message(make_message(headers=dumps(values)), NOW).headers == values


@pytest.mark.parametrize(
    ("expiration", "age", "expires_in", "expected"),
    [
        (10, 0, None, "10000"),
        (10, 4, None, "6000"),
        (1.5, 0, None, "1500"),
        (10, 60, None, "0"),
        (10, 4, 3, "3000"),
        (10, 4, 30, "6000"),
        (None, 4, 30, "30000"),
        (None, 4, -1, "0"),
        (None, 4, None, None),
        (MAX_EXPIRATION_MILLISECONDS / 1000 + 1, 0, None, None),
    ],
)
def test_a_message_is_sent_with_the_life_it_has_left(
    expiration: float | None, age: int, expires_in: int | None, expected: str | None
) -> None:
    message = make_message(
        properties={} if expiration is None else {"expiration": expiration},
        created_at=NOW - age * SECOND,
        expires_at=None if expires_in is None else NOW + expires_in * SECOND,
    )
    assert to_broker_message(message, NOW).properties.get("expiration") == expected


@pytest.mark.parametrize(
    "columns",
    [
        {"headers": "{"},
        {"headers": "[]"},
        {"headers": b"\xff"},
        {"headers": '{"a": {"__type__": "nonsense", "__value__": 1}}'},
        {"headers": '{"a": {"__type__": "uuid", "__value__": 1}}'},
        {"headers": '{"a": {"__type__": "decimal", "__value__": "x"}}'},
        {"properties": "null"},
        {"properties": {"priority": "high"}},
        {"properties": {"priority": True}},
        {"properties": {"message_id": 7}},
        {"properties": {"expiration": "60000"}},
        {"properties": '{"expiration": NaN}'},
        {"properties": '{"message_id": "\\ud800"}'},
    ],
)
def test_a_row_that_is_no_message_is_undecodable(columns: dict[str, Any]) -> None:
    with pytest.raises(UndecodableMessage):
        to_broker_message(make_message(**columns), NOW)


def test_the_error_of_a_bad_row_does_not_repeat_its_values() -> None:
    with pytest.raises(UndecodableMessage) as raised:
        to_broker_message(make_message(headers='{"card": "4111", '), NOW)
    assert "4111" not in str(raised.value)


class TestNativeDelayedDelivery:
    """Celery's quorum queues: the delay is a number of bits in front of the routing key."""

    def message(self, eta: datetime | str | None, exchange: str = "celery_delayed_27") -> Any:
        return make_message(
            exchange=exchange,
            routing_key=calculate_routing_key(3600, "celery.tasks"),
            headers={"eta": eta.isoformat() if isinstance(eta, datetime) else eta},
        )

    def test_the_delay_is_what_is_left_until_the_eta(self) -> None:
        wire = to_broker_message(self.message(to_datetime(NOW) + timedelta(seconds=90.5)), NOW)
        assert (wire.exchange, wire.routing_key) == ("celery_delayed_27", calculate_routing_key(90, "celery.tasks"))

    def test_an_eta_without_a_zone_is_utc(self) -> None:
        wire = to_broker_message(self.message((to_datetime(NOW) + timedelta(seconds=90)).replace(tzinfo=None)), NOW)
        assert wire.routing_key == calculate_routing_key(90, "celery.tasks")

    @pytest.mark.parametrize("seconds", [0.5, 0, -3600])
    def test_without_a_delay_left_it_goes_where_every_delay_ends(self, seconds: float) -> None:
        wire = to_broker_message(self.message(to_datetime(NOW) + timedelta(seconds=seconds)), NOW)
        assert (wire.exchange, wire.routing_key) == ("celery_delayed_delivery", "celery.tasks")

    def test_the_prefix_of_the_exchanges_is_kept(self) -> None:
        wire = to_broker_message(self.message(to_datetime(NOW), exchange="shop_celery_delayed_27"), NOW)
        assert wire.exchange == "shop_celery_delayed_delivery"

    def test_a_delay_that_the_exchanges_cannot_express_is_the_longest_they_can(self) -> None:
        wire = to_broker_message(self.message(to_datetime(NOW) + timedelta(days=36500)), NOW)
        assert wire.routing_key == "1." * 28 + "celery.tasks"

    @pytest.mark.parametrize("eta", [None, "soon", ""])
    def test_without_an_eta_the_route_stays(self, eta: str | None) -> None:
        message = self.message(eta)
        wire = to_broker_message(message, NOW)
        assert (wire.exchange, wire.routing_key) == (message.exchange, message.routing_key)


class TestDeclarations:
    def test_a_queue_comes_back_from_what_differs_from_the_defaults(self) -> None:
        text = json.dumps(
            [
                {
                    "name": "tasks",
                    "routing_key": "tasks.#",
                    "exchange": {"name": "shop", "type": "topic"},
                    "queue_arguments": {"x-queue-type": "quorum"},
                }
            ]
        )
        (queue,) = parse_declarations(text)
        assert (queue.name, queue.routing_key, queue.durable) == ("tasks", "tasks.#", True)
        assert (queue.exchange.name, queue.exchange.type) == ("shop", "topic")
        assert queue.queue_arguments == {"x-queue-type": "quorum"}

    def test_bindings_and_exchanges_come_back_too(self) -> None:
        text = json.dumps(
            [
                {"name": "q", "bindings": [{"exchange": {"name": "a", "type": "topic"}, "routing_key": "x"}]},
                {"name": "e", "type": "fanout"},
            ]
        )
        queue, exchange = parse_declarations(text)
        assert [(each.exchange.name, each.routing_key) for each in queue.bindings] == [("a", "x")]
        assert (exchange.name, exchange.type) == ("e", "fanout")

    @pytest.mark.parametrize("text", ["{}", "[1]", "[null]", '[{"name": "q", "bindings": [1]}]', '["q"]', "["])
    def test_anything_else_is_undecodable(self, text: str) -> None:
        with pytest.raises(UndecodableMessage):
            parse_declarations(text)


scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)  # the broker would close the connection
    | st.text(st.characters(codec="utf-8"), max_size=200)
    | st.datetimes(datetime(1970, 1, 1), datetime(2100, 1, 1))
    | st.decimals(-(10**8), 10**8, places=1)
)
short_names = st.text(st.characters(codec="utf-8"), max_size=60)
header_tables = st.dictionaries(
    short_names,
    st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(short_names, inner, max_size=3)),
    max_size=6,
)
property_sets = st.fixed_dictionaries(
    {"message_id": short_names},
    optional={
        "content_type": short_names,
        "content_encoding": short_names,
        "delivery_mode": st.sampled_from([1, 2]),
        "priority": st.integers(0, 255),
        "correlation_id": short_names,
        "reply_to": short_names,
        "expiration": st.integers(0, 10**6).map(str),
        "timestamp": st.integers(0, 2**63),
        "type": short_names,
        "user_id": short_names,
        "app_id": short_names,
        "cluster_id": short_names,
    },
)


class TestAmqpProperties:
    @given(headers=header_tables, properties=property_sets)
    def test_they_are_encoded_as_py_amqp_encodes_them(
        self, headers: dict[str, Any], properties: dict[str, Any]
    ) -> None:
        reference = amqp.Message(b"", application_headers=headers, **properties)._serialize_properties()
        assert encode_properties(BrokerMessage("", "", headers, properties)) == reference

    @pytest.mark.parametrize("value", [1, True, 1.0, 0, False, 0.0, -0.0])
    def test_equal_values_of_different_types_are_encoded_by_their_type(self, value: Any) -> None:
        reference = amqp.Message(b"", application_headers={"x": value})._serialize_properties()
        assert encode_properties(BrokerMessage("", "", {"x": value}, {})) == reference

    @pytest.mark.parametrize(
        "headers",
        [{"x": uuid.uuid4()}, {"x": 2**64}, {"k" * 256: 1}, {"x": Decimal("1e30")}, {"x": [object()]}, {"x": inf}],
    )
    def test_a_header_that_amqp_cannot_carry_is_undecodable(self, headers: dict[str, Any]) -> None:
        with pytest.raises(UndecodableMessage):
            encode_properties(BrokerMessage("", "", headers, {}))

    def test_the_error_names_the_header_and_not_its_value(self) -> None:
        secret = uuid.uuid4()
        with pytest.raises(UndecodableMessage, match="card") as raised:
            encode_properties(BrokerMessage("", "", {"card": secret}, {}))
        assert str(secret) not in str(raised.value)

    @pytest.mark.parametrize("properties", [{"message_id": "x" * 256}, {"priority": 256}, {"timestamp": -1}])
    def test_a_property_that_amqp_cannot_carry_is_undecodable(self, properties: dict[str, Any]) -> None:
        with pytest.raises(UndecodableMessage):
            encode_properties(BrokerMessage("", "", {}, properties))
