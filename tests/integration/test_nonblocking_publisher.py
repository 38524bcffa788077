"""NonBlockingPublisher on a real RabbitMQ and a real Valkey: each message comes back once."""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Iterator, Sequence

import pytest

from outrider.cdc_relay.background_publisher import BATCH
from outrider.cdc_relay.nonblocking_publisher import NonBlockingPublisher
from outrider.delivery import Outcome, open_publisher
from outrider.embedded.rabbitmq import RabbitMQ
from outrider.embedded.valkey import Valkey
from outrider.storage.message import Message
from tests.fixtures.broker import Broker
from tests.fixtures.messages import NOW, make_message
from tests.fixtures.proxy import FaultProxy
from tests.fixtures.servers import address_of
from tests.fixtures.waiting import wait_for


class Caller:
    """Calls the publisher as the relay's thread does."""

    def __init__(self, broker_url: str, hold_seconds: float) -> None:
        self.outcomes: list[Outcome] = []
        self.sheds = 0
        self.publisher = NonBlockingPublisher(
            open_publisher(broker_url, send_timeout_seconds=10),
            self,
            hold_seconds=hold_seconds,
            server_clock=lambda: NOW,
        )
        self.publisher.start()

    def apply_outcomes(self, outcomes: Sequence[Outcome]) -> None:
        self.outcomes.extend(outcomes)

    def apply_shed(self) -> None:
        self.sheds += 1

    def turn(self) -> None:
        broker = self.publisher.fileno()
        wanted = [broker] if broker is not None and self.publisher.wants_write else []
        readable = [self.publisher.reports.fileno()] + ([] if broker is None else [broker])
        ready, writable, _ = select.select(readable, wanted, [], 0.05)
        self.publisher.collect(ready=broker in ready or bool(writable))

    def turn_until(self, condition: Callable[[], object]) -> None:
        def holds() -> object:
            self.turn()
            return condition()

        wait_for(holds)

    def close(self) -> None:
        self.publisher.close()


Call = Callable[..., Caller]


@pytest.fixture
def call() -> Iterator[Call]:
    """`call(url)`: a caller that has reached the broker; closed with the test."""
    callers: list[Caller] = []

    def start(broker_url: str, *, hold_seconds: float = 30.0) -> Caller:
        caller = Caller(broker_url, hold_seconds)
        callers.append(caller)
        caller.turn_until(lambda: caller.publisher.ever_connected)
        return caller

    yield start
    for caller in callers:
        caller.close()


@pytest.mark.parametrize("bad_at", [0, BATCH - 1, BATCH, 2 * BATCH + 1])
def test_a_message_that_closes_the_channel_costs_no_other_batch_its_answer(
    rabbit: Broker, call: Call, bad_at: int
) -> None:
    queue = rabbit.declare_queue()
    caller = call(rabbit.url)
    messages = [make_message(routing_key=queue) for _ in range(3 * BATCH)]
    bad_message = messages[bad_at] = make_message(routing_key=queue, exchange="nowhere")

    caller.publisher.submit(messages)
    caller.turn_until(lambda: len(caller.outcomes) >= len(messages))

    refused = [(each.message.id, each.failure.error) for each in caller.outcomes if each.failure is not None]
    assert refused == [(bad_message.id, "NotFound")]
    assert sorted(each.message.id for each in caller.outcomes) == sorted(message.id for message in messages)
    received = {message.message_id for message in rabbit.take_what_is_there(queue)}
    assert received == {message.event_id for message in messages} - {bad_message.event_id}
    caller.turn_until(lambda: caller.publisher.fileno() is not None)  # the publisher is handed back


def test_messages_that_wait_for_isolation_when_the_relay_sheds_are_never_sent(
    disposable_rabbitmq: RabbitMQ, call: Call
) -> None:
    """They are left to the scheduler: they must not be sent when the alarm ends."""
    broker = Broker(disposable_rabbitmq.url)
    queue = broker.declare_queue()
    caller = call(broker.url, hold_seconds=0.2)
    twins = twins_to(queue, 2)
    caller.publisher.submit(twins)  # the second goes to the isolation channel, which is open from now on
    caller.turn_until(lambda: len(caller.outcomes) == len(twins))
    disposable_rabbitmq.ctl("set_vm_memory_high_watermark", "absolute", "1MB")
    try:
        caller.publisher.submit(twins_to(queue, 10))
        caller.turn_until(lambda: caller.sheds)
    finally:
        disposable_rabbitmq.ctl("set_vm_memory_high_watermark", "0.4")
    caller.turn_until(lambda: caller.publisher.fileno() is not None)
    last = make_message(routing_key=queue)
    caller.publisher.submit([last])
    caller.turn_until(lambda: any(each.message is last for each in caller.outcomes))

    received = [message.message_id for message in broker.take_what_is_there(queue)]

    # At most one on each channel was in flight when the broker stopped reading.
    assert received[-1] == last.event_id
    assert len(received) <= len(twins) + 2 + 1


def test_messages_to_redis_are_sent_by_the_background_thread(redis_broker: Broker, call: Call) -> None:
    caller = call(redis_broker.url)
    messages = [make_message(routing_key="orders") for _ in range(2 * BATCH)]
    for start in range(0, len(messages), 100):
        caller.publisher.submit(messages[start : start + 100])
        caller.turn()
    caller.turn_until(lambda: len(caller.outcomes) >= len(messages))

    assert [each.message for each in caller.outcomes] == messages
    assert {each.failure for each in caller.outcomes} == {None}
    assert redis_broker.depth("orders") == len(messages)


def test_an_outage_holds_messages_and_delays_no_outcome_that_is_known(
    private_valkey: Callable[..., Valkey], call: Call
) -> None:
    server = private_valkey()
    caller = call(server.url)
    server.kill()
    undecodable, good = make_message(headers="{"), make_message()
    caller.publisher.submit([undecodable, good])
    caller.turn_until(lambda: caller.outcomes)
    assert [each.message for each in caller.outcomes] == [undecodable]

    server.start()
    caller.turn_until(lambda: len(caller.outcomes) == 2)
    assert caller.outcomes[1] == Outcome(good, None)
    assert caller.sheds == 0


def test_rows_that_cannot_be_sent_get_their_outcome_inside_submit(rabbit: Broker, call: Call) -> None:
    caller = call(rabbit.url)
    caller.turn_until(lambda: caller.publisher.fileno() is not None)
    message = make_message(headers="{")
    caller.publisher.submit([message])
    assert [each.message for each in caller.outcomes] == [message]


def test_a_row_declares_its_queue_and_later_rows_need_no_other_thread(rabbit: Broker, call: Call) -> None:
    queue = f"{rabbit.prefix}-declared"
    caller = call(rabbit.url)
    caller.turn_until(lambda: caller.publisher.fileno() is not None)
    first, second = (make_message(routing_key=queue, declarations=[{"name": queue}]) for _ in range(2))
    caller.publisher.submit([first])
    assert caller.publisher.fileno() is None  # the background thread declares the queue
    caller.turn_until(lambda: len(caller.outcomes) == 1)
    caller.turn_until(lambda: caller.publisher.fileno() is not None)
    caller.publisher.submit([second])
    assert caller.publisher.fileno() is not None
    caller.turn_until(lambda: len(caller.outcomes) == 2)
    assert [(each.message, each.failure) for each in caller.outcomes] == [(first, None), (second, None)]
    rabbit.delete_queue(queue)


def twins_to(queue: str, count: int) -> list[Message]:
    """Messages with one message_id: all but the first must be sent one at a time."""
    first = make_message(routing_key=queue)
    return [first, *(make_message(routing_key=queue, event_id=first.event_id) for _ in range(count - 1))]


def test_holding_ends_by_the_clock_although_connections_come_up_and_are_lost_again(
    rabbit: Broker, call: Call, fault_proxy: Callable[[str, int], FaultProxy]
) -> None:
    """More messages than are blamed for it, so this is an outage."""
    proxy = fault_proxy(*address_of(rabbit.url))
    proxy.reset_on(b"ends-the-connection")
    caller = call(proxy.through(rabbit.url), hold_seconds=1.5)
    caller.publisher.submit([make_message(headers={"x": "ends-the-connection"}) for _ in range(100)])
    began = time.monotonic()
    wait_for_shed = 20.0
    caller.turn_until(lambda: caller.sheds or time.monotonic() - began > wait_for_shed)
    assert caller.sheds == 1
    assert proxy.connections_accepted < 20  # the pauses between them grow
    # With the rows left to the scheduler, the publisher works again.
    queue = rabbit.declare_queue()
    good = make_message(routing_key=queue)
    caller.turn_until(lambda: caller.publisher.shedding is None)
    caller.publisher.submit([good])
    caller.turn_until(lambda: any(each.message is good for each in caller.outcomes))
    assert [each.failure for each in caller.outcomes if each.message is good] == [None]
    assert {each.failure.error for each in caller.outcomes if each.failure} <= {"BrokerCrashed"}
