"""KombuPublisher on a real Valkey, and on kombu's memory transport for the way without a pipeline (older kombu)."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from decimal import Decimal
from typing import Any

import pytest
from kombu import Connection, Exchange, Queue
from kombu.transport import redis
from kombu.utils.json import dumps

from outrider.delivery import Outcome, Publisher, open_publisher
from outrider.delivery.kombu_publisher import PIPELINE_MESSAGES, KombuPublisher
from outrider.embedded.process import free_port
from outrider.embedded.valkey import Valkey
from outrider.errors import BrokerOutage, SettingsError
from outrider.failures import FailureKind, classify
from outrider.settings.tls import TlsOptions
from outrider.storage.message import Message
from tests.fixtures.broker import Broker
from tests.fixtures.messages import NOW, make_message
from tests.fixtures.proxy import FaultProxy
from tests.fixtures.servers import address_of

Open = Callable[..., KombuPublisher]


@pytest.fixture
def open_kombu() -> Iterator[Open]:
    opened: list[Publisher] = []

    def start(url: str, *, connected: bool = True, **options: Any) -> KombuPublisher:
        if url.startswith("memory:"):  # not for users: it shares nothing with other processes
            publisher: Publisher = KombuPublisher([Connection(url)])
        else:
            publisher = open_publisher(url, **{"send_timeout_seconds": 5.0, **options})
        assert isinstance(publisher, KombuPublisher)
        opened.append(publisher)
        if connected:
            publisher.connect()
        return publisher

    yield start
    for publisher in opened:
        publisher.close()


@pytest.fixture
def publisher(redis_broker: Broker, open_kombu: Open) -> KombuPublisher:
    return open_kombu(redis_broker.url)


def send_unsent(publisher: Publisher) -> list[Outcome]:
    while publisher.has_blocking_work:
        publisher.do_blocking_work()
    return publisher.collect(0)


def send(publisher: Publisher, *messages: Message) -> dict[int, str | None]:
    publisher.publish(messages, NOW)
    outcomes = send_unsent(publisher)
    assert publisher.in_flight == 0
    assert sorted(outcome.message.id for outcome in outcomes) == sorted(message.id for message in messages)
    return {each.message.id: each.failure.error if each.failure else None for each in outcomes}


def topic(name: str, queue: str, key: str) -> list[dict[str, Any]]:
    return [{"name": queue, "exchange": {"name": name, "type": "topic"}, "routing_key": key}]


class TestOnValkey:
    def test_thousands_of_messages_are_confirmed_and_arrive_in_order(
        self, redis_broker: Broker, publisher: KombuPublisher
    ) -> None:
        messages = [make_message(routing_key="orders", payload=str(number).encode()) for number in range(1200)]
        assert set(send(publisher, *messages).values()) == {None}
        assert redis_broker.depth("orders") == 1200
        first, second = redis_broker.get_all("orders", 2)
        assert (first.body, second.body) == (b"0", b"1")
        assert first.message_id == messages[0].event_id

    def test_a_message_arrives_with_headers_and_properties(
        self, redis_broker: Broker, publisher: KombuPublisher
    ) -> None:
        headers = {"unicode": "Grüße", "nested": {"list": [1, None]}, "price": Decimal("1.5"), "id": uuid.uuid4()}
        given = {"correlation_id": "c", "priority": 3, "expiration": 60, "stamped_headers": ["a"]}
        message = make_message(
            headers=dumps(headers), properties=given, created_at=NOW - 10_000_000, payload=b"\x00\xff"
        )
        assert send(publisher, message) == {message.id: None}
        (received,) = redis_broker.get_all("orders", 1)
        assert received.headers == headers
        assert received.body == b"\x00\xff"
        assert (received.content_type, received.content_encoding) == ("application/json", "utf-8")
        properties = received.properties
        assert (properties["correlation_id"], properties["expiration"], properties["priority"]) == ("c", "50000", 3)
        assert properties["stamped_headers"] == ["a"]

    def test_an_empty_payload_arrives(self, redis_broker: Broker, publisher: KombuPublisher) -> None:
        send(publisher, make_message(payload=b""))
        (received,) = redis_broker.get_all("orders", 1)
        assert received.body == b""

    def test_a_row_declares_its_queue_and_is_routed(self, redis_broker: Broker, publisher: KombuPublisher) -> None:
        message = make_message(
            exchange="shop", routing_key="order.placed", declarations=topic("shop", "all", "order.#")
        )
        assert send(publisher, message) == {message.id: None}
        (received,) = redis_broker.get_all("all", 1)
        assert (received.exchange, received.routing_key) == ("shop", "order.placed")

    def test_what_others_declared_is_routed_too(self, redis_broker: Broker, publisher: KombuPublisher) -> None:
        with redis_broker.channel() as channel:
            Queue("bound", Exchange("direct-shop", type="direct"), routing_key="k")(channel).declare()
        message = make_message(exchange="direct-shop", routing_key="k")
        assert send(publisher, message) == {message.id: None}
        redis_broker.get_all("bound", 1)

    def test_a_message_that_is_not_mandatory_may_vanish(self, publisher: KombuPublisher) -> None:
        declared = [{"name": "everyone", "type": "fanout"}]
        unheard = make_message(exchange="everyone", declarations=declared, properties={"mandatory": False})
        unknown = make_message(exchange="no-such-exchange", properties={"mandatory": False})
        failed = make_message(exchange="everyone", declarations=declared, properties={"mandatory": True})
        assert send(publisher, unheard, unknown, failed) == {unheard.id: None, unknown.id: None, failed.id: "NoRoute"}

    def test_an_unroutable_message_fails_instead_of_vanishing(self, publisher: KombuPublisher) -> None:
        declared = topic("shop", "all", "order.#")
        good = make_message(exchange="shop", routing_key="order.placed", declarations=declared)
        unmatched = make_message(exchange="shop", routing_key="invoice.sent", declarations=declared)
        unknown = make_message(exchange="no-such-exchange", routing_key="k")
        nameless = make_message(routing_key="")
        assert send(publisher, unmatched, good, unknown, nameless) == {
            good.id: None,
            unmatched.id: "NoRoute",
            unknown.id: "NoRoute",
            nameless.id: "NoRoute",
        }

    def test_bindings_are_read_once_for_a_batch(
        self, publisher: KombuPublisher, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        read: list[str] = []

        def counting(channel: redis.Channel, exchange: str) -> Any:
            read.append(exchange)
            return get_table(channel, exchange)

        get_table = redis.Channel.get_table
        monkeypatch.setattr(redis.Channel, "get_table", counting)
        declared = topic("shop", "all", "order.#")
        messages = [make_message(exchange="shop", routing_key="order.x", declarations=declared) for _ in range(10)]
        assert set(send(publisher, *messages).values()) == {None}
        assert read == ["shop"]

    def test_a_fanout_without_listeners_fails(self, publisher: KombuPublisher) -> None:
        declared = [{"name": "ears", "exchange": {"name": "news", "type": "fanout"}}]
        message = make_message(exchange="news", routing_key="", declarations=declared)
        assert send(publisher, message) == {message.id: "NoRoute"}

    def test_a_fanout_with_a_listener_is_delivered(self, redis_broker: Broker, publisher: KombuPublisher) -> None:
        heard: list[Any] = []
        with Connection(redis_broker.url) as connection:
            queue = Queue("ears", Exchange("news", type="fanout"), auto_delete=True)
            with connection.Consumer(queue, callbacks=[lambda body, message: heard.append(body)], no_ack=True):
                with suppress(TimeoutError):
                    connection.drain_events(timeout=0.2)  # it subscribes when it first listens
                declared = [{"name": "ears", "auto_delete": True, "exchange": {"name": "news", "type": "fanout"}}]
                message = make_message(exchange="news", routing_key="", declarations=declared)
                assert send(publisher, message) == {message.id: None}
                connection.drain_events(timeout=5)
        assert heard == [{"total": 12}]

    def test_a_key_of_another_type_fails_its_message_only(
        self, redis_broker: Broker, publisher: KombuPublisher
    ) -> None:
        with redis_broker.channel() as channel:
            channel.client.set("taken", "by something else")
        bad, good = make_message(routing_key="taken"), make_message()
        assert send(publisher, bad, good) == {bad.id: "WrongType", good.id: None}

    def test_a_bad_row_fails_for_good_and_alone(self, publisher: KombuPublisher) -> None:
        bad, undeclared, good = make_message(headers="{"), make_message(declarations="{}"), make_message()
        publisher.publish([bad, undeclared, good], NOW)
        kinds = {each.message.id: each.failure and each.failure.kind for each in send_unsent(publisher)}
        assert kinds == {bad.id: FailureKind.PERMANENT, undeclared.id: FailureKind.PERMANENT, good.id: None}

    def test_publishing_only_stores_messages_and_blocking_work_sends_them(
        self, redis_broker: Broker, publisher: KombuPublisher
    ) -> None:
        messages = [make_message(routing_key="orders") for _ in range(PIPELINE_MESSAGES + 1)]
        publisher.publish(messages, NOW)
        assert (publisher.has_blocking_work, publisher.has_outcomes) == (True, False)
        assert redis_broker.depth("orders") == 0
        publisher.do_blocking_work()
        assert (publisher.has_blocking_work, publisher.has_outcomes) == (True, True)
        assert publisher.withdraw() == messages[PIPELINE_MESSAGES:]
        assert not publisher.has_blocking_work
        assert [outcome.message for outcome in publisher.collect(0)] == messages[:PIPELINE_MESSAGES]
        assert redis_broker.depth("orders") == PIPELINE_MESSAGES

    def test_what_was_not_sent_is_unconfirmed_after_closing(self, publisher: KombuPublisher) -> None:
        message = make_message(routing_key="orders")
        publisher.publish([message], NOW)
        publisher.close()
        assert publisher.take_unconfirmed() == [message]

    def test_collecting_does_not_wait(self, publisher: KombuPublisher) -> None:
        publisher.heartbeat()
        started = time.monotonic()
        assert publisher.collect(10) == []
        assert time.monotonic() - started < 1
        assert publisher.fileno() is None
        assert publisher.blocked is None


class TestOutages:
    def test_a_server_without_memory_is_an_outage(
        self, private_valkey: Callable[..., Valkey], open_kombu: Open
    ) -> None:
        server = private_valkey()
        publisher = open_kombu(server.url)
        with Connection(server.url) as connection:
            connection.default_channel.client.config_set("maxmemory", "1")
        messages = [make_message(), make_message()]
        publisher.publish(messages, NOW)
        with pytest.raises(BrokerOutage) as raised:
            publisher.do_blocking_work()
        assert classify(raised.value).error == "OutOfMemory"
        assert publisher.take_unconfirmed() == messages

    def test_a_killed_server_is_an_outage_and_a_new_one_is_not(
        self, private_valkey: Callable[..., Valkey], open_kombu: Open
    ) -> None:
        server = private_valkey()
        publisher = open_kombu(server.url)
        first = make_message()
        assert send(publisher, first) == {first.id: None}
        server.kill()
        second = make_message()
        publisher.publish([second], NOW)
        with pytest.raises(BrokerOutage):
            publisher.do_blocking_work()
        assert not publisher.connected
        assert publisher.in_flight == 1
        assert publisher.take_unconfirmed() == [second]
        with pytest.raises(BrokerOutage) as raised:
            publisher.connect()
        assert classify(raised.value).error == "ConnectionRefused"
        server.start()
        publisher.connect()
        assert send(publisher, second) == {second.id: None}
        assert Broker(server.url).depth("orders") == 2

    def test_what_was_answered_before_a_cut_keeps_its_outcome(
        self, redis_broker: Broker, fault_proxy: Callable[[str, int], FaultProxy], open_kombu: Open
    ) -> None:
        proxy = fault_proxy(*address_of(redis_broker.url))
        publisher = open_kombu(proxy.through(redis_broker.url), send_timeout_seconds=1.0)
        bad, good = make_message(headers="{"), make_message()
        proxy.blackhole()
        publisher.publish([bad, good], NOW)
        started = time.monotonic()
        with pytest.raises(BrokerOutage) as raised:
            publisher.do_blocking_work()
        assert time.monotonic() - started < 5
        assert classify(raised.value).error == "Timeout"
        assert [outcome.message for outcome in publisher.collect(0)] == [bad]
        assert publisher.take_unconfirmed() == [good]
        with pytest.raises(BrokerOutage):
            publisher.collect(0)

    def test_a_refused_connection_is_an_outage_at_once(self, open_kombu: Open) -> None:
        publisher = open_kombu(f"redis://127.0.0.1:{free_port()}/0", connected=False)
        started = time.monotonic()
        with pytest.raises(BrokerOutage) as raised:
            publisher.connect()
        assert time.monotonic() - started < 1.5
        assert classify(raised.value).error == "ConnectionRefused"

    def test_a_wrong_password_is_an_outage_that_does_not_repeat_it(
        self, redis_broker: Broker, open_kombu: Open
    ) -> None:
        publisher = open_kombu(redis_broker.url.replace("redis://", "redis://user:s3cret@"), connected=False)
        with pytest.raises(BrokerOutage) as raised:
            publisher.connect()
        assert classify(raised.value).error == "LoginRefused"
        assert "s3cret" not in str(raised.value)

    def test_publishing_without_a_connection_is_an_outage(self, redis_broker: Broker, open_kombu: Open) -> None:
        publisher = open_kombu(redis_broker.url, connected=False)
        message = make_message()
        for call in (lambda: publisher.publish([message], NOW), lambda: publisher.collect(0), publisher.heartbeat):
            with pytest.raises(BrokerOutage):
                call()
        assert publisher.take_unconfirmed() == [message]


class TestWithoutAPipeline:
    """memory:// shares its queues among all connections of the process."""

    def test_messages_are_routed_or_fail(self, open_kombu: Open) -> None:
        name = f"memory-{uuid.uuid4().hex}"
        publisher = open_kombu("memory://")
        declared = topic(name, name, "order.#")
        good = make_message(exchange=name, routing_key="order.placed", declarations=declared)
        unmatched = make_message(exchange=name, routing_key="invoice.sent")
        unknown = make_message(exchange=f"{name}-unknown", routing_key="k")
        bad = make_message(headers="[]")
        assert send(publisher, good, unmatched, unknown, bad) == {
            good.id: None,
            unmatched.id: "NoRoute",
            unknown.id: "NoRoute",
            bad.id: "Undecodable",
        }
        (received,) = Broker("memory://").get_all(name, 1)
        assert received.message_id == good.event_id

    def test_a_conflicting_declaration_fails_its_row(self, open_kombu: Open) -> None:
        name = f"memory-{uuid.uuid4().hex}"
        publisher = open_kombu("memory://")
        first = make_message(exchange=name, routing_key="k", declarations=topic(name, name, "k"))
        other = [{"name": name, "exchange": {"name": name, "type": "direct"}, "routing_key": "k"}]
        second = make_message(exchange=name, routing_key="k", declarations=other)
        assert send(publisher, first, second) == {first.id: None, second.id: "PreconditionFailed"}


@pytest.mark.parametrize(
    "url",
    [
        "",
        "localhost",
        "://host",
        "ampq://guest:s3cret@localhost//",
        "amqp://guest:s3cret/@localhost:5672//",
        "amqp://guest:s3cret@localhost:port//",
        "redis://:s3cret@localhost:99999/0",
        "amqp://guest:s3cret@localhost//?nonsense=1",
        "amqp://guest:s3cret@localhost//;nonsense",
        "os.path://guest:s3cret@localhost",
        "amqps://guest:s3cret@localhost//?ssl_ca_certs=/ca.pem",
    ],
)
def test_an_unusable_url_is_a_settings_error_of_one_line_without_the_password(url: str) -> None:
    with pytest.raises(SettingsError) as raised:
        open_publisher(url, send_timeout_seconds=1)
    assert "s3cret" not in str(raised.value)
    assert "\n" not in str(raised.value)
    assert raised.value.__cause__ is None


def test_a_tls_file_that_is_missing_is_a_settings_error() -> None:
    with pytest.raises(SettingsError, match=r"/no/such/ca\.pem"):
        open_publisher("amqps://localhost//", send_timeout_seconds=1, tls=TlsOptions(ca_file="/no/such/ca.pem"))


@pytest.mark.parametrize(
    "url",
    [
        "kafka://localhost",
        "confluentkafka://localhost",
        "gcpubsub://project",
        "sqs://",
        "memory://",
        "nats://localhost",
    ],
)
def test_a_transport_that_cannot_prove_delivery_is_refused_with_those_that_can(url: str) -> None:
    with pytest.raises(SettingsError, match=r"cannot prove that the broker has a message; supported are amqp://, "):
        open_publisher(url, send_timeout_seconds=1)
