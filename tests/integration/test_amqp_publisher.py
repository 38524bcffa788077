"""AmqpPublisher on a real RabbitMQ: every message comes back once, with its true outcome."""

from __future__ import annotations

import json
import select
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import pytest
from kombu import Connection, Exchange, Queue
from kombu.transport.native_delayed_delivery import (
    bind_queue_to_native_delayed_delivery_exchange,
    calculate_routing_key,
    declare_native_delayed_delivery_exchanges_and_queues,
)
from kombu.utils.json import dumps

from outrider.delivery import Outcome, Publisher, open_publisher
from outrider.delivery.amqp_publisher import AmqpPublisher
from outrider.delivery.declarations import parse_declarations
from outrider.embedded.process import free_port
from outrider.embedded.rabbitmq import RabbitMQ
from outrider.errors import BrokerOutage
from outrider.failures import FailureKind, classify
from outrider.settings.tls import TlsOptions
from outrider.storage.message import Message
from outrider.storage.server_time import to_datetime
from tests.fixtures.broker import Broker, exists
from tests.fixtures.certificates import make_certificate
from tests.fixtures.messages import NOW, make_message
from tests.fixtures.proxy import FaultProxy
from tests.fixtures.servers import SharedRabbitMQ, address_of
from tests.fixtures.waiting import wait_for

Open = Callable[..., AmqpPublisher]
StartProxy = Callable[[str, int], FaultProxy]


@pytest.fixture
def open_amqp() -> Iterator[Open]:
    """`open_amqp(url, ...)`: a connected publisher, closed with the test."""
    opened: list[Publisher] = []

    def start(url: str, *, connected: bool = True, **options: Any) -> AmqpPublisher:
        publisher = open_publisher(url, **{"send_timeout_seconds": 10.0, **options})
        assert isinstance(publisher, AmqpPublisher)
        opened.append(publisher)
        if connected:
            publisher.connect()
        return publisher

    yield start
    for publisher in opened:
        publisher.close()


@pytest.fixture
def publisher(rabbit: Broker, open_amqp: Open) -> AmqpPublisher:
    return open_amqp(rabbit.url)


def collect_all(publisher: Publisher, deadline_seconds: float = 60.0) -> list[Outcome]:
    """Do the blocking work, and wait until nothing is in flight."""
    outcomes: list[Outcome] = []
    deadline = time.monotonic() + deadline_seconds
    while publisher.in_flight or publisher.has_blocking_work or publisher.has_outcomes:
        assert time.monotonic() < deadline, f"{publisher.in_flight} messages have no outcome"
        if publisher.has_blocking_work:
            publisher.do_blocking_work()
        outcomes += publisher.collect(1)
    return outcomes


def send(publisher: Publisher, *messages: Message) -> dict[int, str | None]:
    """Publish and wait: the error of each message by its id, None for a confirmed one. Each must come back once."""
    return errors_of(outcomes_of(publisher, *messages), messages)


def outcomes_of(publisher: Publisher, *messages: Message) -> list[Outcome]:
    publisher.publish(messages, NOW)
    return collect_all(publisher)


def errors_of(outcomes: Sequence[Outcome], messages: Sequence[Message]) -> dict[int, str | None]:
    assert sorted(outcome.message.id for outcome in outcomes) == sorted(message.id for message in messages)
    return {each.message.id: each.failure.error if each.failure else None for each in outcomes}


def to(queue: str, **columns: Any) -> Message:
    return make_message(routing_key=queue, **columns)


def collect_until(publisher: Publisher, condition: Callable[[list[Outcome]], object]) -> list[Outcome]:
    """Collect without waiting, until the condition on what came is true."""
    outcomes: list[Outcome] = []

    def holds() -> object:
        outcomes.extend(publisher.collect(0))
        return condition(outcomes)

    wait_for(holds)
    return outcomes


def lose(publisher: Publisher, deadline_seconds: float = 60.0) -> tuple[list[Outcome], BrokerOutage]:
    """Collect until the connection is found lost."""
    outcomes: list[Outcome] = []
    deadline = time.monotonic() + deadline_seconds
    while time.monotonic() < deadline:
        try:
            outcomes += publisher.collect(0.2)
            publisher.heartbeat()
        except BrokerOutage as error:
            return outcomes, error
    raise AssertionError("the publisher did not notice that the connection is lost")


def test_tasks_of_a_type_arrive_each_with_its_own_headers(rabbit: Broker, publisher: AmqpPublisher) -> None:
    queue = rabbit.declare_queue()
    headers: list[dict[str, Any]] = [
        {"id": f"id-{number}", "argsrepr": argsrepr, "retries": 0, "stamps": {}, "parent_id": None}
        for number, argsrepr in enumerate(["(1,)", "(2,)", "('Käthe',)", 'a "quoted" one', "", "(3,)"])
    ]
    messages = [
        to(
            queue,
            headers=json.dumps(each, ensure_ascii=False),
            properties={"correlation_id": each["id"], "reply_to": "answers", "priority": 3},
        )
        for each in headers
    ]
    assert set(send(publisher, *messages).values()) == {None}
    arrived = rabbit.get_all(queue, len(messages))
    assert [message.headers for message in arrived] == headers
    assert [message.properties["correlation_id"] for message in arrived] == [each["id"] for each in headers]
    assert [message.properties["message_id"] for message in arrived] == [message.event_id for message in messages]


class TestConfirms:
    def test_thousands_of_pipelined_messages_are_all_confirmed(self, rabbit: Broker, publisher: AmqpPublisher) -> None:
        queue = rabbit.declare_queue()
        messages = [to(queue, payload=str(number).encode()) for number in range(5000)]
        for start in range(0, 5000, 500):
            publisher.publish(messages[start : start + 500], NOW)
        assert set(errors_of(collect_all(publisher), messages).values()) == {None}
        rabbit.wait_for_depth(queue, 5000)
        first = rabbit.get_all(queue, 3)
        assert [each.body for each in first] == [b"0", b"1", b"2"]
        assert first[0].message_id == messages[0].event_id

    def test_outcomes_make_the_socket_readable(self, rabbit: Broker, publisher: AmqpPublisher) -> None:
        queue = rabbit.declare_queue()
        publisher.publish([to(queue)], NOW)
        number = publisher.fileno()
        assert number is not None
        outcomes: list[Outcome] = []
        while not outcomes:
            readable, _, _ = select.select([number], [], [], 10)
            assert readable
            outcomes = publisher.collect(0)
        assert outcomes[0].failure is None

    def test_an_unroutable_message_fails_and_the_others_do_not(self, rabbit: Broker, publisher: AmqpPublisher) -> None:
        queue = rabbit.declare_queue()
        good, lost, last = to(queue), to("no-such-queue"), to(queue)
        assert send(publisher, good, lost, last) == {good.id: None, lost.id: "NoRoute", last.id: None}

    def test_a_message_that_is_not_mandatory_may_vanish_and_the_next_one_to_the_same_route_fails(
        self, rabbit: Broker, publisher: AmqpPublisher
    ) -> None:
        unheard, lost = to("no-such-queue", properties={"mandatory": False}), to("no-such-queue")
        assert send(publisher, unheard, lost) == {unheard.id: None, lost.id: "NoRoute"}
        queue = rabbit.declare_queue()
        heard = to(queue, properties={"mandatory": False})
        assert send(publisher, heard) == {heard.id: None}
        (received,) = rabbit.get_all(queue, 1)
        assert received.message_id == heard.event_id

    def test_the_failure_of_an_unroutable_message_names_its_route(self, publisher: AmqpPublisher) -> None:
        publisher.publish([to("no-such-queue")], NOW)
        (outcome,) = collect_all(publisher)
        assert outcome.failure is not None
        assert outcome.failure.kind is FailureKind.FAILED
        assert "'no-such-queue'" in outcome.failure.text

    def test_a_full_queue_nacks(self, rabbit: Broker, publisher: AmqpPublisher) -> None:
        full = rabbit.declare_queue(max_length=1, queue_arguments={"x-overflow": "reject-publish"})
        good = rabbit.declare_queue()
        messages = [to(full), to(full), to(good), to(full)]
        errors = send(publisher, *messages)
        assert [errors[message.id] for message in messages] == [None, "Nacked", None, "Nacked"]

    def test_many_returns_among_many_confirms_are_told_apart(self, rabbit: Broker, publisher: AmqpPublisher) -> None:
        queue = rabbit.declare_queue()
        messages = [to("no-such-queue" if number % 3 == 0 else queue) for number in range(3000)]
        errors = send(publisher, *messages)
        expected = {message.id: "NoRoute" if message.routing_key != queue else None for message in messages}
        assert errors == expected

    @pytest.mark.parametrize("lost_first", [True, False])
    def test_one_event_id_twice_in_flight_is_told_apart(
        self, rabbit: Broker, publisher: AmqpPublisher, lost_first: bool
    ) -> None:
        queue = rabbit.declare_queue()
        event_id = str(uuid.uuid4())
        good, lost = to(queue, event_id=event_id), to("no-such-queue", event_id=event_id)
        batch = [lost, good] if lost_first else [good, lost]
        assert send(publisher, *batch, to(queue))  # another one keeps the main channel busy
        assert send(publisher, *batch) == {good.id: None, lost.id: "NoRoute"}

    def test_a_publisher_is_connected_once_and_connecting_again_changes_nothing(
        self, rabbit: Broker, publisher: AmqpPublisher
    ) -> None:
        number = publisher.fileno()
        publisher.connect()
        assert publisher.connected
        assert publisher.fileno() == number


class TestMessages:
    def test_headers_of_every_type_arrive(self, rabbit: Broker, publisher: AmqpPublisher) -> None:
        queue = rabbit.declare_queue()
        headers = {
            "unicode": "Grüße, 世界",
            "nested": {"list": [1, None, "x", {"deep": True}], "empty": {}},
            "none": None,
            "decimal": Decimal("1.5"),
            "at": datetime(2026, 1, 2, 3, 4, 5),
            "big": 2**40,
            "negative": -(2**40),
            "float": 1.25,
        }
        assert set(send(publisher, to(queue, headers=dumps(headers))).values()) == {None}
        (received,) = rabbit.get_all(queue, 1)
        assert received.headers == headers

    def test_properties_arrive(self, rabbit: Broker, publisher: AmqpPublisher) -> None:
        queue = rabbit.declare_queue()
        given = {"correlation_id": "c", "reply_to": "r", "priority": 4, "app_id": "shop", "expiration": 60}
        message = to(queue, properties=given, created_at=NOW - 10_000_000)
        send(publisher, message)
        (received,) = rabbit.get_all(queue, 1)
        properties = received.properties
        assert (properties["correlation_id"], properties["reply_to"], properties["app_id"]) == ("c", "r", "shop")
        assert (properties["priority"], properties["delivery_mode"], properties["expiration"]) == (4, 2, "50000")
        assert (properties["message_id"], properties["type"]) == (message.event_id, "order.placed")
        assert properties["timestamp"] == int(to_datetime(message.created_at).timestamp())
        assert (received.content_type, received.content_encoding) == ("application/json", "utf-8")

    @pytest.mark.parametrize("size", [0, 1, 131_000, 131_072, 131_073, 1_000_000])
    def test_bodies_of_any_size_arrive(self, rabbit: Broker, publisher: AmqpPublisher, size: int) -> None:
        queue = rabbit.declare_queue()
        body = bytes(number % 251 for number in range(size))
        assert set(send(publisher, to(queue, payload=body), to(queue)).values()) == {None}
        first, _ = rabbit.get_all(queue, 2)
        assert first.body == body

    def test_a_batch_larger_than_one_write_arrives(self, rabbit: Broker, publisher: AmqpPublisher) -> None:
        queue = rabbit.declare_queue()
        messages = [to(queue, payload=b"x" * 900_000) for _ in range(12)]
        assert set(send(publisher, *messages).values()) == {None}
        rabbit.wait_for_depth(queue, 12)

    @pytest.mark.parametrize(
        "columns",
        [
            {"headers": "{"},
            {"headers": dumps({"id": uuid.uuid4()})},
            {"headers": {"k" * 256: 1}},
            {"headers": {"huge": "x" * 200_000}},
            {"properties": {"priority": 1000}},
            {"routing_key": "k" * 256},
            {"exchange": "e" * 256},
            {"declarations": "["},
        ],
    )
    def test_a_row_that_can_never_be_sent_fails_for_good_and_alone(
        self, rabbit: Broker, publisher: AmqpPublisher, columns: dict[str, Any]
    ) -> None:
        queue = rabbit.declare_queue()
        before, bad, after = to(queue), make_message(**columns), to(queue)
        publisher.publish([before, bad, after], NOW)
        outcomes = {outcome.message.id: outcome.failure for outcome in collect_all(publisher)}
        failure = outcomes.pop(bad.id)
        assert failure is not None
        assert failure.kind is FailureKind.PERMANENT
        assert outcomes == {before.id: None, after.id: None}
        rabbit.wait_for_depth(queue, 2)


class TestChannelErrors:
    def test_an_unknown_exchange_fails_alone(self, rabbit: Broker, publisher: AmqpPublisher) -> None:
        queue = rabbit.declare_queue()
        messages = [to(queue) for _ in range(50)]
        bad = make_message(exchange="no-such-exchange")
        errors = send(publisher, *messages[:25], bad, *messages[25:])
        assert errors.pop(bad.id) == "NotFound"
        assert set(errors.values()) == {None}
        # What was sent before the bad message can arrive twice; nothing may be missing.
        arrived = {received.message_id for received in rabbit.take_what_is_there(queue)}
        assert arrived == {message.event_id for message in messages}

    def test_messages_to_a_refused_exchange_no_longer_disturb_the_others(
        self, rabbit: Broker, publisher: AmqpPublisher
    ) -> None:
        queue = rabbit.declare_queue()
        send(publisher, make_message(exchange="no-such-exchange"))
        channel = publisher._main_channel
        messages = [to(queue) for _ in range(200)]
        bad = [make_message(exchange="no-such-exchange") for _ in range(20)]
        mixed = [
            message for number in range(20) for message in (bad[number], *messages[number * 10 : number * 10 + 10])
        ]
        errors = send(publisher, *mixed)
        assert {errors[message.id] for message in bad} == {"NotFound"}
        assert {errors[message.id] for message in messages} == {None}
        assert publisher._main_channel is channel  # none of them shared it with a bad one
        assert rabbit.depth(queue) == 200

    def test_an_exchange_that_is_created_later_is_good_again(self, rabbit: Broker, publisher: AmqpPublisher) -> None:
        queue, exchange = rabbit.declare_queue(), f"{rabbit.prefix}-late"
        first, second, third = (make_message(exchange=exchange, routing_key="k") for _ in range(3))
        assert send(publisher, first) == {first.id: "NotFound"}
        rabbit.declare_exchange(exchange)
        rabbit.bind(queue, exchange, "k")
        assert send(publisher, second, third) == {second.id: None, third.id: None}
        assert not publisher._refused_exchanges

    def test_the_exchange_of_an_event_is_created_if_it_is_missing_and_the_event_is_sent(
        self, rabbit: Broker, open_amqp: Open
    ) -> None:
        queue, exchange = rabbit.declare_queue(), f"{rabbit.prefix}-new"
        publisher = open_amqp(rabbit.url, create_exchanges=True)
        early, other = make_message(exchange=exchange, routing_key="order.placed"), to(queue)
        errors = {outcome.message.id: outcome.failure for outcome in outcomes_of(publisher, early, other)}
        assert errors[other.id] is None
        failure = errors[early.id]
        assert failure is not None
        assert failure.text == (
            f"NoRoute: no queue is bound to exchange '{exchange}' for routing key 'order.placed': "
            "bind one, or start the worker that does"
        )
        for _ in range(2):
            rabbit.declare_exchange(exchange, type="topic")  # refused if it were of another kind
            rabbit.bind(queue, exchange, "order.*")
            late = make_message(exchange=exchange, routing_key="order.placed")
            assert send(publisher, late) == {late.id: None}
            with rabbit.channel() as channel:
                channel.exchange_delete(exchange)
            lost = make_message(exchange=exchange, routing_key="order.placed")
            assert send(publisher, lost) == {lost.id: "NoRoute"}  # created again on the same connection
        broken = make_message(
            exchange=f"{exchange}\nbroken", routing_key="order.placed"
        )  # the broker creates another name
        assert send(publisher, broken) == {broken.id: "NotFound"}
        task = make_message(exchange=f"{exchange}-of-tasks", properties={"correlation_id": "x"})
        assert send(publisher, task) == {task.id: "NotFound"}
        assert not [message for message in outcomes_of(publisher, to(queue)) if message.failure]

    def test_several_bad_messages_of_different_kinds_each_fail_alone(
        self, rabbit: Broker, publisher: AmqpPublisher
    ) -> None:
        queue = rabbit.declare_queue()
        good = [to(queue) for _ in range(20)]
        foreign_user = to(queue, properties={"user_id": "somebody-else"})
        unknown, other = make_message(exchange="no-such-exchange"), make_message(exchange="nor-this")
        returned = to("no-such-queue")
        errors = send(publisher, *good[:5], foreign_user, *good[5:10], unknown, returned, *good[10:], other)
        assert errors.pop(foreign_user.id) == "PreconditionFailed"
        assert (errors.pop(unknown.id), errors.pop(other.id)) == ("NotFound", "NotFound")
        assert errors.pop(returned.id) == "NoRoute"
        assert set(errors.values()) == {None}

    def test_publishing_goes_on_while_messages_are_isolated(self, rabbit: Broker, publisher: AmqpPublisher) -> None:
        queue = rabbit.declare_queue()
        messages: list[Message] = []
        outcomes: list[Outcome] = []
        for number in range(20):
            batch = [to(queue) for _ in range(20)]
            if number % 5 == 0:
                batch.append(make_message(exchange=f"no-such-exchange-{number}"))
            publisher.publish(batch, NOW)
            if publisher.has_blocking_work:
                publisher.do_blocking_work()
            outcomes += publisher.collect(0)
            messages += batch
        errors = errors_of([*outcomes, *collect_all(publisher)], messages)
        assert {errors[message.id] for message in messages if message.exchange} == {"NotFound"}
        assert {errors[message.id] for message in messages if not message.exchange} == {None}


class TestDeclarations:
    def test_a_queue_is_declared_before_the_send(self, rabbit: Broker, publisher: AmqpPublisher) -> None:
        name, exchange = f"{rabbit.prefix}-declared", f"{rabbit.prefix}-topic"
        declared = [{"name": name, "exchange": {"name": exchange, "type": "topic"}, "routing_key": "order.#"}]
        message = make_message(exchange=exchange, routing_key="order.placed", declarations=declared)
        assert send(publisher, message) == {message.id: None}
        assert len(rabbit.get_all(name, 1)) == 1
        rabbit.delete_queue(name)

    def test_what_kombu_writes_of_a_queue_is_what_is_declared(self, rabbit: Broker, publisher: AmqpPublisher) -> None:
        name = f"{rabbit.prefix}-quorum"
        queue = Queue(
            name,
            Exchange(f"{rabbit.prefix}-x", type="topic"),
            routing_key="a.*",
            queue_arguments={"x-queue-type": "quorum"},
        )
        message = make_message(
            exchange=f"{rabbit.prefix}-x", routing_key="a.b", declarations=[queue.as_dict(recurse=True)]
        )
        assert send(publisher, message) == {message.id: None}
        with rabbit.channel() as channel:
            queue(channel).declare()  # a different queue of this name would be refused
        rabbit.delete_queue(name)

    def test_a_deleted_queue_is_declared_again_after_one_failure(
        self, rabbit: Broker, publisher: AmqpPublisher
    ) -> None:
        name = f"{rabbit.prefix}-deleted"
        columns = {"routing_key": name, "declarations": [{"name": name}]}
        first, second, third = (make_message(**columns) for _ in range(3))
        assert send(publisher, first) == {first.id: None}
        rabbit.delete_queue(name)
        assert send(publisher, second) == {second.id: "NoRoute"}
        assert send(publisher, third) == {third.id: None}
        rabbit.delete_queue(name)

    def test_a_declaration_that_the_broker_refuses_fails_its_rows_only(
        self, rabbit: Broker, publisher: AmqpPublisher
    ) -> None:
        name = rabbit.declare_queue()
        conflicting = [{"name": name, "durable": False, "auto_delete": True}]
        bad = [to(name, declarations=conflicting) for _ in range(3)]
        good, declared = to(name), to(name, declarations=[{"name": name}])
        errors = send(publisher, bad[0], good, bad[1], declared, bad[2])
        assert {errors[message.id] for message in bad} == {"PreconditionFailed"}
        assert (errors[good.id], errors[declared.id]) == (None, None)

    @pytest.mark.parametrize(
        ("declared", "error"),
        [
            ({"name": "q", "queue_arguments": {"x-max-length": 2**70}}, "Undecodable"),
            ({"name": "q", "queue_arguments": {"x-max-length": -1}}, "PreconditionFailed"),
            ({"name": "q", "queue_arguments": {"x-id": json.loads(dumps(uuid.uuid4()))}}, "Undecodable"),
            ({"name": "q" * 256}, "Undecodable"),
            ({"name": 5}, "Undecodable"),
        ],
    )
    def test_a_declaration_that_cannot_be_made_does_not_cost_the_connection(
        self, rabbit: Broker, publisher: AmqpPublisher, declared: dict[str, Any], error: str
    ) -> None:
        queue = rabbit.declare_queue()
        good, bad, other = to(queue), to(queue, declarations=[declared]), to(queue, declarations=[{"name": queue}])
        assert send(publisher, good, bad, other) == {good.id: None, bad.id: error, other.id: None}

    def test_a_declaration_that_makes_the_broker_close_the_connection_does_so_once(
        self, rabbit: Broker, publisher: AmqpPublisher
    ) -> None:
        """An exchange of a type whose plugin is missing is such a one."""
        queue = rabbit.declare_queue()
        bad = to(queue, declarations=[{"name": queue, "exchange": {"name": "delayed", "type": "x-no-such-type"}}])
        good = to(queue)
        publisher.publish([bad, good], NOW)
        outcomes = collect_until(publisher, lambda outcomes: outcomes)
        assert errors_of(outcomes, [good]) == {good.id: None}  # it does not wait for the declaration
        with pytest.raises(BrokerOutage, match="x-no-such-type"):
            publisher.do_blocking_work()
        assert publisher.take_unconfirmed() == [bad]
        publisher.connect()
        assert send(publisher, good, bad) == {good.id: None, bad.id: "DeclarationRefused"}

    def test_declarations_are_made_once_per_connection(
        self, rabbit: Broker, publisher: AmqpPublisher, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        declared: list[str] = []

        def counting(text: str) -> list[Any]:
            declared.append(text)
            return parse_declarations(text)

        monkeypatch.setattr("outrider.delivery.declarations.parse_declarations", counting)
        name = rabbit.declare_queue()
        for _ in range(3):
            send(publisher, *(to(name, declarations=[{"name": name}]) for _ in range(10)))
        assert len(declared) == 1
        publisher.close()
        publisher.connect()
        send(publisher, to(name, declarations=[{"name": name}]))
        assert len(declared) == 2


class TestLostConnections:
    @pytest.fixture
    def proxy(self, rabbit: Broker, fault_proxy: StartProxy) -> FaultProxy:
        return fault_proxy(*address_of(rabbit.url))

    def test_after_a_cut_the_unconfirmed_are_exactly_those_without_an_outcome(
        self, rabbit: Broker, proxy: FaultProxy, open_amqp: Open
    ) -> None:
        queue = rabbit.declare_queue()
        publisher = open_amqp(proxy.through(rabbit.url))
        messages = [to(queue) for _ in range(2000)]
        publisher.publish(messages, NOW)
        outcomes = publisher.collect(10)
        proxy.cut()
        late, _ = lose(publisher)
        unconfirmed = publisher.take_unconfirmed()
        answered = [outcome.message.id for outcome in [*outcomes, *late]]
        assert not publisher.connected
        assert publisher.in_flight == 0
        assert [message.id for message in unconfirmed] == [each.id for each in messages if each.id not in set(answered)]
        assert len(answered) + len(unconfirmed) == 2000

    def test_a_lost_answer_leaves_the_message_unconfirmed_though_it_arrived(
        self, rabbit: Broker, proxy: FaultProxy, open_amqp: Open
    ) -> None:
        queue = rabbit.declare_queue()
        publisher = open_amqp(proxy.through(rabbit.url))
        proxy.blackhole("to_client")
        message = to(queue)
        publisher.publish([message], NOW)
        rabbit.wait_for_depth(queue, 1)
        proxy.cut()
        outcomes, _ = lose(publisher)
        assert outcomes == []
        assert publisher.take_unconfirmed() == [message]

    def test_it_connects_again_and_goes_on(self, rabbit: Broker, proxy: FaultProxy, open_amqp: Open) -> None:
        queue = rabbit.declare_queue()
        publisher = open_amqp(proxy.through(rabbit.url))
        proxy.cut()
        lose(publisher)
        with pytest.raises(BrokerOutage):
            publisher.publish([to(queue)], NOW)
        assert len(publisher.take_unconfirmed()) == 1
        publisher.connect()
        message = to(queue)
        assert send(publisher, message) == {message.id: None}

    def test_a_black_hole_is_an_outage_after_the_send_timeout(
        self, rabbit: Broker, proxy: FaultProxy, open_amqp: Open
    ) -> None:
        queue = rabbit.declare_queue()
        publisher = open_amqp(proxy.through(rabbit.url), send_timeout_seconds=1.0)
        proxy.blackhole()
        messages = [to(queue), to(queue)]
        started = time.monotonic()
        publisher.publish(messages, NOW)
        with pytest.raises(BrokerOutage) as raised:
            publisher.collect(10)
        assert 1.0 <= time.monotonic() - started < 4
        assert classify(raised.value).error == "Timeout"
        assert publisher.take_unconfirmed() == messages

    def test_a_write_that_the_broker_does_not_take_is_an_outage_after_the_send_timeout(
        self, rabbit: Broker, proxy: FaultProxy, open_amqp: Open
    ) -> None:
        queue = rabbit.declare_queue()
        publisher = open_amqp(proxy.through(rabbit.url), send_timeout_seconds=1.0)
        proxy.blackhole("to_server")
        messages = [to(queue, payload=b"x" * 4_000_000) for _ in range(16)]
        publisher.publish(messages, NOW)  # does not wait for the network
        assert publisher.wants_write
        outcomes, _ = lose(publisher)
        assert outcomes == []
        assert publisher.take_unconfirmed() == messages

    def test_what_the_network_takes_slowly_is_not_late(
        self, rabbit: Broker, proxy: FaultProxy, open_amqp: Open
    ) -> None:
        queue = rabbit.declare_queue()
        publisher = open_amqp(proxy.through(rabbit.url), send_timeout_seconds=2.0)
        proxy.blackhole("to_server")
        messages = [to(queue, payload=b"x" * 4_000_000) for _ in range(16)]
        publisher.publish(messages, NOW)
        assert publisher.wants_write
        proxy.heal()
        outcomes = collect_all(publisher, deadline_seconds=60)
        assert [outcome.failure for outcome in outcomes] == [None] * len(messages)

    def test_a_torn_frame_does_not_spin_and_is_an_outage_in_the_end(
        self, rabbit: Broker, proxy: FaultProxy, open_amqp: Open
    ) -> None:
        queue = rabbit.declare_queue()
        publisher = open_amqp(proxy.through(rabbit.url))
        proxy.tear_after(9, "to_client")
        message = to(queue)
        publisher.publish([message], NOW)
        outcomes, _ = lose(publisher)
        assert outcomes == []
        assert publisher.take_unconfirmed() == [message]

    def test_half_a_frame_is_kept_until_the_rest_arrives(
        self, rabbit: Broker, proxy: FaultProxy, open_amqp: Open
    ) -> None:
        """A returned message of 400 kB comes in many pieces, and slowly."""
        publisher = open_amqp(proxy.through(rabbit.url))
        proxy.latency(0.05, "to_client")
        messages = [to("no-such-queue", payload=b"x" * 400_000) for _ in range(3)]
        publisher.publish(messages, NOW)
        outcomes = collect_until(publisher, lambda outcomes: len(outcomes) == 3)
        assert set(errors_of(outcomes, messages).values()) == {"NoRoute"}

    def test_half_a_frame_does_not_keep_the_caller(self, rabbit: Broker, proxy: FaultProxy, open_amqp: Open) -> None:
        """More comes back than fits into the socket's buffers; then the network stops in the middle of a frame."""
        publisher = open_amqp(proxy.through(rabbit.url))
        messages = [to("no-such-queue", payload=b"x" * 8_000_000) for _ in range(4)]
        publisher.publish(messages, NOW)
        outcomes: list[Outcome] = []

        def returned_bytes() -> int:
            outcomes.extend(publisher.collect(0))
            return proxy.bytes_forwarded("to_client")

        wait_for(lambda: returned_bytes() > 1_000_000)
        proxy.blackhole("to_client")
        for _ in range(20):
            started = time.monotonic()
            outcomes += publisher.collect(0.05)
            assert time.monotonic() - started < 2
        assert publisher.in_flight
        proxy.heal()
        outcomes += collect_all(publisher)
        assert set(errors_of(outcomes, messages).values()) == {"NoRoute"}

    def test_missed_heartbeats_are_an_outage(self, rabbit: Broker, proxy: FaultProxy, open_amqp: Open) -> None:
        publisher = open_amqp(proxy.through(rabbit.url), heartbeat_seconds=1)
        proxy.blackhole("to_client")
        _, error = lose(publisher)
        assert classify(error).error == "HeartbeatMissed"

    def test_heartbeats_keep_an_idle_connection(self, rabbit: Broker, open_amqp: Open) -> None:
        publisher = open_amqp(rabbit.url, heartbeat_seconds=1)
        number = publisher.fileno()
        assert number is not None
        until = time.monotonic() + 4  # both sides close the connection after two silent intervals
        while time.monotonic() < until:
            publisher.heartbeat()
            publisher.collect(0)
            select.select([number], [], [], 0.5)
        queue = rabbit.declare_queue()
        message = to(queue)
        assert send(publisher, message) == {message.id: None}

    def test_closing_hands_back_what_was_in_flight(self, rabbit: Broker, proxy: FaultProxy, open_amqp: Open) -> None:
        queue = rabbit.declare_queue()
        publisher = open_amqp(proxy.through(rabbit.url))
        proxy.blackhole()
        messages = [to(queue), make_message(headers="{"), to(queue)]
        publisher.publish(messages, NOW)
        started = time.monotonic()
        publisher.close()
        assert time.monotonic() - started < 5
        assert [outcome.message for outcome in publisher.collect(0)] == [messages[1]]
        assert publisher.take_unconfirmed() == [messages[0], messages[2]]
        publisher.close()

    def test_several_hosts_are_tried_in_turn(self, rabbit: Broker, open_amqp: Open) -> None:
        nobody = f"amqp://guest:guest@127.0.0.1:{free_port()}//"
        publisher = open_amqp(f"{nobody};{rabbit.url}", connected=False)
        with pytest.raises(BrokerOutage):
            publisher.connect()
        publisher.connect()
        assert publisher.connected


class TestConnecting:
    def test_a_refused_connection_is_an_outage_at_once(self, open_amqp: Open) -> None:
        port = free_port()
        publisher = open_amqp(f"amqp://guest:guest@127.0.0.1:{port}//", connected=False)
        started = time.monotonic()
        with pytest.raises(BrokerOutage, match=f"127.0.0.1:{port}") as raised:
            publisher.connect()
        assert time.monotonic() - started < 2
        assert classify(raised.value).error == "ConnectionRefused"

    def test_a_host_that_does_not_answer_is_an_outage_after_the_connect_timeout(
        self, rabbit: Broker, fault_proxy: StartProxy, open_amqp: Open
    ) -> None:
        proxy = fault_proxy(*address_of(rabbit.url))
        proxy.blackhole()
        publisher = open_amqp(proxy.through(rabbit.url), connected=False, connect_timeout_seconds=0.5)
        started = time.monotonic()
        with pytest.raises(BrokerOutage) as raised:
            publisher.connect()
        assert time.monotonic() - started < 3
        assert classify(raised.value).error == "Timeout"

    def test_a_wrong_password_is_an_outage_that_does_not_repeat_it(self, rabbit: Broker, open_amqp: Open) -> None:
        publisher = open_amqp(rabbit.url.replace("guest:guest@", "guest:s3cret@"), connected=False)
        with pytest.raises(BrokerOutage) as raised:
            publisher.connect()
        assert classify(raised.value).error == "LoginRefused"
        assert "s3cret" not in f"{raised.value} {raised.value!r} {classify(raised.value)}"
        assert not publisher.connected

    def test_an_unknown_vhost_is_an_outage_that_names_it(self, rabbit: Broker, open_amqp: Open) -> None:
        publisher = open_amqp(rabbit.url.rstrip("/") + "/no-such-vhost", connected=False)
        with pytest.raises(BrokerOutage, match="no-such-vhost") as raised:
            publisher.connect()
        assert classify(raised.value).error == "VhostRefused"

    def test_publishing_without_a_connection_is_an_outage(self, rabbit: Broker, open_amqp: Open) -> None:
        publisher = open_amqp(rabbit.url, connected=False)
        message = to("anywhere")
        with pytest.raises(BrokerOutage):
            publisher.publish([message], NOW)
        with pytest.raises(BrokerOutage):
            publisher.collect(0)
        with pytest.raises(BrokerOutage):
            publisher.heartbeat()
        assert publisher.fileno() is None
        assert publisher.take_unconfirmed() == [message]


class TestReconfiguredBroker:
    """On a node of this module, whose limits may be changed."""

    @pytest.fixture
    def node(self, disposable_rabbitmq: RabbitMQ) -> Broker:
        return Broker(disposable_rabbitmq.url)

    def test_a_message_that_is_too_large_fails_alone(
        self, disposable_rabbitmq: RabbitMQ, node: Broker, open_amqp: Open
    ) -> None:
        queue = node.declare_queue()
        limit = "persistent_term:put(max_message_size, {0}), application:set_env(rabbit, max_message_size, {0})."
        disposable_rabbitmq.ctl("eval", limit.format(100_000))
        try:
            publisher = open_amqp(node.url)
            small, large, last = to(queue), to(queue, payload=b"x" * 200_000), to(queue)
            assert send(publisher, small, large, last) == {small.id: None, large.id: "MessageTooLarge", last.id: None}
        finally:
            disposable_rabbitmq.ctl("eval", limit.format(134_217_728))

    def test_a_memory_alarm_blocks_and_its_end_confirms_what_waited(
        self, disposable_rabbitmq: RabbitMQ, node: Broker, open_amqp: Open
    ) -> None:
        queue = node.declare_queue()
        publisher = open_amqp(node.url, send_timeout_seconds=1.0)
        disposable_rabbitmq.ctl("set_vm_memory_high_watermark", "absolute", "1MB")
        try:
            waiting = [to(queue) for _ in range(10)]
            publisher.publish(waiting, NOW)
            outcomes = collect_until(publisher, lambda _: publisher.blocked)
            assert "memory" in cast(str, publisher.blocked)
            until = time.monotonic() + 2.5
            while time.monotonic() < until:  # past the send timeout, which does not count while blocked
                outcomes += publisher.collect(0.5)
                publisher.heartbeat()
            refused = to(queue)
            with pytest.raises(BrokerOutage) as raised:
                publisher.publish([refused], NOW)
            assert classify(raised.value).error == "Blocked"
            assert publisher.take_unconfirmed() == [refused]
            assert publisher.connected
        finally:
            disposable_rabbitmq.ctl("set_vm_memory_high_watermark", "0.4")
        outcomes += collect_all(publisher)
        assert set(errors_of(outcomes, waiting).values()) == {None}
        assert publisher.blocked is None
        assert send(publisher, refused) == {refused.id: None}

    def test_closing_a_blocked_publisher_is_quick(
        self, disposable_rabbitmq: RabbitMQ, node: Broker, open_amqp: Open
    ) -> None:
        queue = node.declare_queue()
        publisher = open_amqp(node.url)
        disposable_rabbitmq.ctl("set_vm_memory_high_watermark", "absolute", "1MB")
        try:
            publisher.publish([to(queue) for _ in range(3)], NOW)
            outcomes = collect_until(publisher, lambda _: publisher.blocked)
            started = time.monotonic()
            publisher.close()
            assert time.monotonic() - started < 2
            assert len(outcomes) + len(publisher.take_unconfirmed()) == 3
        finally:
            disposable_rabbitmq.ctl("set_vm_memory_high_watermark", "0.4")

    def test_a_user_without_permission_fails_its_messages_and_not_the_connection(
        self, disposable_rabbitmq: RabbitMQ, node: Broker, open_amqp: Open
    ) -> None:
        queue = node.declare_queue()
        disposable_rabbitmq.ctl("add_user", "limited", "limited")
        disposable_rabbitmq.ctl("set_permissions", "limited", "^$", r"^(amq\.default|allowed)$", "^$")
        publisher = open_amqp(node.url.replace("guest:guest", "limited:limited"))
        good, forbidden = to(queue), make_message(exchange="amq.topic")
        assert send(publisher, good, forbidden) == {good.id: None, forbidden.id: "AccessRefused"}
        publisher.close()
        publisher = open_amqp(node.url.replace("guest:guest", "limited:limited"), create_exchanges=True)
        node.declare_exchange("allowed", type="fanout")
        node.bind(queue, "allowed")
        exists_already = make_message(exchange="allowed")
        assert send(publisher, exists_already) == {exists_already.id: None}
        with node.channel() as channel:
            channel.exchange_delete("allowed")
        missing = make_message(exchange="allowed")
        [outcome] = outcomes_of(publisher, missing)
        assert outcome.failure is not None
        assert outcome.failure.text.startswith("NotFound: ")
        assert "and it cannot be created: AccessRefused" in outcome.failure.text
        undeclarable = to(queue, declarations=[{"name": "new-queue"}])
        assert send(publisher, undeclarable) == {undeclarable.id: "AccessRefused"}
        assert not exists(node, "new-queue")

    def test_a_message_that_makes_the_broker_close_the_connection_fails_alone_in_the_end(
        self, node: Broker, open_amqp: Open
    ) -> None:
        """No such message is known. Too large a frame, which py-amqp never sends, stands in for it."""
        queue = node.declare_queue()
        publisher = open_amqp(node.url)
        bad, good = to(queue, payload=b"x" * 300_000), [to(queue) for _ in range(6)]
        pending = [*good[:3], bad, *good[3:]]
        outcomes: list[Outcome] = []
        for _ in range(4):
            if not pending:
                break
            publisher.connect()
            assert publisher._connection is not None
            publisher._connection.frame_max = 1_000_000
            try:
                publisher.publish(pending, NOW)
                while publisher.in_flight:
                    if publisher.has_blocking_work:
                        publisher.do_blocking_work()
                    outcomes += publisher.collect(1)
                pending = []
            except BrokerOutage:
                pending = publisher.take_unconfirmed()
        errors = errors_of(outcomes, [bad, *good])
        assert errors.pop(bad.id) == "BrokerCrashed"
        assert set(errors.values()) == {None}

    def test_a_broker_that_is_killed_is_an_outage_and_it_connects_to_the_next_one(
        self, disposable_rabbitmq: RabbitMQ, node: Broker, open_amqp: Open
    ) -> None:
        queue = node.declare_queue()
        publisher = open_amqp(node.url)
        messages = [to(queue) for _ in range(100)]
        publisher.publish(messages, NOW)
        number = publisher.fileno()
        assert number is not None
        assert select.select([number], [], [], 10)[0]  # confirms have arrived and are not read yet
        disposable_rabbitmq.kill()
        outcomes, _ = lose(publisher)
        assert outcomes
        assert {outcome.failure for outcome in outcomes} == {None}
        assert len(outcomes) + len(publisher.take_unconfirmed()) == 100
        with pytest.raises(BrokerOutage):
            publisher.connect()
        disposable_rabbitmq.start()
        publisher.connect()
        last = to(queue)
        assert send(publisher, last) == {last.id: None}
        assert node.depth(queue) >= len(outcomes) + 1

    def test_a_broker_that_shuts_down_says_so(
        self, disposable_rabbitmq: RabbitMQ, node: Broker, open_amqp: Open
    ) -> None:
        publisher = open_amqp(node.url)
        disposable_rabbitmq.ctl("stop_app")
        try:
            _, error = lose(publisher)
            assert classify(error).error == "ConnectionForced"
        finally:
            disposable_rabbitmq.ctl("start_app")


class TestTls:
    """amqps:// on a node with a certificate of a private authority."""

    @pytest.fixture
    def authority(self, tmp_path: Path) -> Path:
        """A directory with the authority's certificate, and the node's key and certificate for `localhost`."""
        make_certificate(tmp_path)
        return tmp_path

    @pytest.fixture
    def tls_url(self, private_rabbitmq: Callable[..., RabbitMQ], authority: Path) -> str:
        port = free_port()
        configuration = {
            "listeners.ssl.default": f"127.0.0.1:{port}",
            "ssl_options.certfile": str(authority / "cert.pem"),
            "ssl_options.keyfile": str(authority / "key.pem"),
        }
        private_rabbitmq(configuration=configuration)
        return f"amqps://guest:guest@localhost:{port}//"

    def test_messages_arrive_over_tls_where_the_certificate_is_trusted(
        self, tls_url: str, authority: Path, open_amqp: Open
    ) -> None:
        publisher = open_amqp(tls_url, tls=TlsOptions(ca_file=str(authority / "cert.pem")))
        name = "over-tls"
        messages = [to(name, declarations=[{"name": name}]) for _ in range(3000)]
        returned = to("no-such-queue", payload=b"x" * 500_000)
        errors = send(publisher, *messages[:1500], returned, *messages[1500:])
        assert errors.pop(returned.id) == "NoRoute"
        assert set(errors.values()) == {None}
        number = publisher.fileno()
        assert number is not None
        publisher.publish([to(name)], NOW)
        assert select.select([number], [], [], 10)[0]

        unverified = open_amqp(tls_url, tls=TlsOptions(verify=False))
        assert unverified.connected

        suspicious = open_amqp(tls_url, connected=False)
        with pytest.raises(BrokerOutage) as raised:
            suspicious.connect()
        assert classify(raised.value).error == "TlsFailed"


def test_celerys_delayed_messages_arrive_after_what_is_left_of_their_delay(
    rabbit_vhost: Broker, open_amqp: Open
) -> None:
    """kombu's own delay exchanges, with rows that were written an hour before they are sent."""
    queue = Queue("tasks", Exchange("tasks", type="topic"), routing_key="tasks")
    with Connection(rabbit_vhost.url) as connection:
        queue(connection.default_channel).declare()
        declare_native_delayed_delivery_exchanges_and_queues(connection, "classic")
        bind_queue_to_native_delayed_delivery_exchange(connection, queue)
    publisher = open_amqp(rabbit_vhost.url)

    def delayed(seconds: float) -> Message:
        eta = (to_datetime(NOW) + timedelta(seconds=seconds)).astimezone(UTC)
        return make_message(
            exchange="celery_delayed_27",
            routing_key=calculate_routing_key(3600, "tasks"),
            headers={"eta": eta.isoformat()},
        )

    overdue, soon, later = delayed(-5), delayed(2.5), delayed(600)
    assert send(publisher, soon, later, overdue) == {soon.id: None, later.id: None, overdue.id: None}
    sent = time.monotonic()
    arrived = rabbit_vhost.get_all("tasks", 2)
    assert [each.message_id for each in arrived] == [overdue.event_id, soon.event_id]
    assert time.monotonic() - sent > 1.0
    assert rabbit_vhost.depth("tasks") == 0


def test_a_row_of_what_celery_declares_needs_no_queue_beforehand(rabbit: Broker, publisher: AmqpPublisher) -> None:
    name = f"{rabbit.prefix}-celery"
    queue = {"name": name, "exchange": {"name": name, "type": "direct"}, "routing_key": name}
    message = make_message(exchange=name, routing_key=name, declarations=[queue])
    assert send(publisher, message) == {message.id: None}
    rabbit.delete_queue(name)


def test_declaring_a_queue_is_blocking_work_and_is_done_once(rabbit: Broker, publisher: AmqpPublisher) -> None:
    queue = rabbit.declare_queue()
    plain = to(queue)
    first, second = (to(queue, declarations=json.dumps([{"name": queue, "durable": True}])) for _ in range(2))
    had_work = []
    for message in (plain, first, second):
        publisher.publish([message], NOW)
        had_work.append(publisher.has_blocking_work)
        while publisher.has_blocking_work:
            publisher.do_blocking_work()
    assert had_work == [False, True, False]
    assert set(errors_of(collect_all(publisher), [plain, first, second]).values()) == {None}


def test_reopening_a_closed_channel_is_blocking_work(rabbit: Broker, publisher: AmqpPublisher) -> None:
    queue = rabbit.declare_queue()
    messages = [to(queue), to(queue, exchange="nowhere"), to(queue)]
    publisher.publish(messages, NOW)
    outcomes = collect_until(publisher, lambda _: publisher.has_blocking_work)
    unsent = to(queue)
    publisher.publish([unsent], NOW)  # waits for the new channel
    publisher.do_blocking_work()
    assert not publisher.has_blocking_work
    outcomes += collect_all(publisher)
    errors = errors_of(outcomes, [*messages, unsent])
    assert [errors[message.id] for message in (*messages, unsent)] == [None, "NotFound", None, None]


@pytest.mark.parametrize("refused", [False, True], ids=["in flight", "to an exchange that was just refused"])
def test_a_message_that_must_be_isolated_is_blocking_work(
    rabbit: Broker, publisher: AmqpPublisher, refused: bool
) -> None:
    queue = rabbit.declare_queue()
    message = to(queue, exchange="nowhere" if refused else "")
    error = "NotFound" if refused else None
    if refused:
        assert send(publisher, message) == {message.id: error}
    else:
        publisher.publish([message], NOW)  # a second one with its id could not be told from it

    publisher.publish([message], NOW)

    assert (publisher.isolating, publisher.has_blocking_work) == (True, True)
    outcomes = collect_all(publisher)
    assert [outcome.failure and outcome.failure.error for outcome in outcomes] == [error] * (1 if refused else 2)
    assert (publisher.isolating, publisher.has_blocking_work) == (False, False)


def test_what_was_not_sent_can_be_withdrawn(rabbit: Broker, publisher: AmqpPublisher) -> None:
    queue = rabbit.declare_queue()
    undeclared = to(queue, declarations=[{"name": queue}])
    sent = to(queue)
    twin = to(queue, event_id=sent.event_id)
    publisher.publish([undeclared, sent, twin], NOW)
    assert publisher.withdraw() == [undeclared, twin]
    assert errors_of(collect_all(publisher), [sent]) == {sent.id: None}
    assert rabbit.depth(queue) == 1


def test_the_connection_names_itself(rabbitmq_server: SharedRabbitMQ, publisher: AmqpPublisher) -> None:
    if rabbitmq_server.embedded is None:
        pytest.skip("needs rabbitmqctl")
    assert '"outrider"' in rabbitmq_server.embedded.ctl("list_connections", "client_properties")


def test_no_connection_is_left_behind(rabbit: Broker, open_amqp: Open) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(5):
        publisher = open_amqp(rabbit.url)
        send(publisher, to(rabbit.declare_queue()))
        publisher.close()
        refused = open_amqp(rabbit.url.replace("guest:guest@", "guest:wrong@"), connected=False)
        with pytest.raises(BrokerOutage):
            refused.connect()
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 1
