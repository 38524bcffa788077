"""The courier on a real RabbitMQ: each message comes back once, whatever the others of its batch do."""

from __future__ import annotations

import select
from collections.abc import Callable, Iterator

import pytest

from outrider.cdc_relay.broker_recovery import BATCH
from outrider.cdc_relay.nonblocking_publisher import NonBlockingPublisher
from outrider.delivery import Outcome, open_publisher
from outrider.embedded import RabbitMQ
from outrider.runtime.wakeable_queue import WakeableQueue
from outrider.storage.message import Message
from tests.fixtures.broker import Broker
from tests.fixtures.messages import NOW, make_message
from tests.fixtures.waiting import wait_for


class Caller:
    """Turns as the relay's thread does: handles what was posted, collects when there is something, never waits long."""

    def __init__(self, broker_url: str, hold_seconds: float) -> None:
        self.outcomes: list[Outcome] = []
        self.sheds = 0
        self._events: WakeableQueue[Callable[[], None]] = WakeableQueue()
        self.courier = NonBlockingPublisher(
            open_publisher(broker_url, send_timeout_seconds=10),
            hold_seconds=hold_seconds,
            server_clock=lambda: NOW,
            post=lambda event: self._events.put([event]),
            on_outcomes=self.outcomes.extend,
            on_shed=self._shed,
        )
        self.courier.start()

    def turn(self) -> None:
        broker = self.courier.fileno()
        wanted = [broker] if broker is not None and self.courier.wants_write else []
        readable = [self._events.fileno()] + ([] if broker is None else [broker])
        ready, writable, _ = select.select(readable, wanted, [], 0.05)
        for event in self._events.take():
            event()
        self.courier.collect(ready=broker in ready or bool(writable))

    def turn_until(self, condition: Callable[[], object]) -> None:
        def holds() -> object:
            self.turn()
            return condition()

        wait_for(holds)

    def close(self) -> None:
        self.courier.close()
        self._events.close()

    def _shed(self) -> None:
        self.sheds += 1


Call = Callable[..., Caller]


@pytest.fixture
def call() -> Iterator[Call]:
    """`call(url)`: a caller whose courier has reached the broker; closed with the test."""
    callers: list[Caller] = []

    def start(broker_url: str, *, hold_seconds: float = 30.0) -> Caller:
        caller = Caller(broker_url, hold_seconds)
        callers.append(caller)
        caller.turn_until(lambda: caller.courier.fileno() is not None)
        return caller

    yield start
    for caller in callers:
        caller.close()


@pytest.mark.parametrize("culprit_at", [0, BATCH - 1, BATCH, 2 * BATCH + 1])
def test_a_message_that_closes_the_channel_costs_no_other_batch_its_answer(
    rabbit: Broker, call: Call, culprit_at: int
) -> None:
    queue = rabbit.declare_queue()
    caller = call(rabbit.url)
    messages = [make_message(routing_key=queue) for _ in range(3 * BATCH)]
    culprit = messages[culprit_at] = make_message(routing_key=queue, exchange="nowhere")

    caller.courier.submit(messages)
    caller.turn_until(lambda: len(caller.outcomes) >= len(messages))

    refused = [(each.message.id, each.failure.error) for each in caller.outcomes if each.failure is not None]
    assert refused == [(culprit.id, "NotFound")]
    assert sorted(each.message.id for each in caller.outcomes) == sorted(message.id for message in messages)
    received = {message.message_id for message in rabbit.take_what_is_there(queue)}
    assert received == {message.event_id for message in messages} - {culprit.event_id}
    caller.turn_until(lambda: caller.courier.fileno() is not None)  # all is well again


def test_what_waits_its_turn_when_the_relay_sheds_is_never_sent(disposable_rabbitmq: RabbitMQ, call: Call) -> None:
    """It is left to the scheduler: the end of the alarm must not send it as well."""
    broker = Broker(disposable_rabbitmq.url)
    queue = broker.declare_queue()
    caller = call(broker.url, hold_seconds=0.2)
    twins = twins_to(queue, 2)
    caller.courier.submit(twins)  # the second goes by the careful channel, which is open from now on
    caller.turn_until(lambda: len(caller.outcomes) == len(twins))
    disposable_rabbitmq.ctl("set_vm_memory_high_watermark", "absolute", "1MB")
    try:
        caller.courier.submit(twins_to(queue, 10))
        caller.turn_until(lambda: caller.sheds)
    finally:
        disposable_rabbitmq.ctl("set_vm_memory_high_watermark", "0.4")
    caller.turn_until(lambda: caller.courier.fileno() is not None)
    last = make_message(routing_key=queue)
    caller.courier.submit([last])
    caller.turn_until(lambda: any(each.message is last for each in caller.outcomes))

    received = [message.message_id for message in broker.take_what_is_there(queue)]

    # At most one on each channel was on its way when the broker stopped listening.
    assert received[-1] == last.event_id
    assert len(received) <= len(twins) + 2 + 1


def twins_to(queue: str, count: int) -> list[Message]:
    """Messages that cannot be told apart while they are in flight: all but the first must go one by one."""
    first = make_message(routing_key=queue)
    return [first, *(make_message(routing_key=queue, event_id=first.event_id) for _ in range(count - 1))]
