"""A worker at a real broker: acknowledgements, retries, requeued messages and dead letters."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from pydantic import BaseModel

from outrider.consumer import Consumer, Delivery, Reject, broker_session, consume
from outrider.consumer.connect import BrokerHosts
from outrider.consumer.dead_letters import find_dead_letters, replay_dead_letters
from outrider.consumer.delivery import ATTEMPT, ERROR, REASON, ROUTING_KEY, read_delivery
from outrider.errors import BrokerError
from tests.fixtures.waiting import wait_for
from tests.fixtures.worker import Work


class Order(BaseModel):
    number: int


def test_handlers_receive_the_arguments_of_their_signature(work: Work) -> None:
    seen: list[Any] = []
    exchange = work.broker.declare_exchange(type="topic")

    @consume("order.*", queue=work.queue, exchange=exchange)
    async def place(
        order: Order, routing_key: str, event_id: str, event_type: str, aggregate: Any, attempt: int
    ) -> None:
        seen.append((order, routing_key, event_id, event_type, aggregate, attempt))

    @consume("order.#", queue=f"{work.queue}.plain", exchange=exchange)
    def archive(body: bytes, message: Delivery, tracking_ids: tuple[str, ...]) -> None:
        seen.append((body, message.exchange, tracking_ids, threading.current_thread().name))

    with work.worker(place, archive):
        work.broker.publish(
            b'{"number": 7}',
            exchange=exchange,
            routing_key="order.placed",
            message_id="e-1",
            type="order.placed",
            headers={"aggregate_type": "order", "aggregate_id": "7", "tracking_ids": ["e-0", "e-1"]},
        )
        work.wait_until_processed("done")
        work.wait_until_processed("done", queue=f"{work.queue}.plain")
    assert (Order(number=7), "order.placed", "e-1", "order.placed", ("order", "7"), 1) in seen
    assert (b'{"number": 7}', exchange, ("e-0", "e-1"), "handler-0") in seen
    assert work.broker.depth(work.queue) == 0


def test_a_failed_message_waits_in_the_broker_and_returns_to_its_own_queue_alone(work: Work) -> None:
    seen: list[tuple[int, str, Any]] = []
    others: list[int] = []
    exchange = work.broker.declare_exchange(type="topic")
    neighbour = f"{work.queue}.neighbour"

    @consume("order.*", queue=work.queue, exchange=exchange, retry_delays=("100ms", "2s"))
    async def fail_twice(body: dict[str, Any], attempt: int, routing_key: str, headers: dict[str, Any]) -> None:
        seen.append((attempt, routing_key, headers.get("x-death")))
        if attempt < 3:
            raise ValueError("not yet")

    @consume("order.*", queue=neighbour, exchange=exchange, retry_delays=("100ms",))
    async def succeed(attempt: int) -> None:
        others.append(attempt)

    with work.worker(fail_twice, succeed):
        work.broker.publish(b"{}", exchange=exchange, routing_key="order.placed", message_id="e-1")
        work.wait_until_processed("done")
        work.wait_until_processed("done", queue=neighbour)
    assert [(attempt, key) for attempt, key, _ in seen] == [
        (1, "order.placed"),
        (2, "order.placed"),
        (3, "order.placed"),
    ]
    assert others == [1]
    assert work.processed("retried") == 2
    assert work.count("outbox_consumer_retries_total", consumer=work.queue, delay="2s") == 1
    # The broker's own clock, in whole seconds: when the message left the first delay, and when the second.
    left_first, left_second = (deaths[0]["time"] for _, _, deaths in seen[1:])
    assert (left_second - left_first).total_seconds() >= 2
    assert [deaths[0]["queue"] for _, _, deaths in seen[1:]] == ["outrider.delay.100ms", "outrider.delay.2s"]
    assert work.broker.depth(work.dead_letters) == 0


def test_dead_letters_have_a_reason_and_keep_the_original_message(work: Work) -> None:
    def decide(order: Order, headers: dict[str, Any]) -> None:
        if order.number == 1:
            raise Reject("no such customer")
        raise ValueError("broken pipe")

    with work.worker(Consumer(decide, queue=work.queue, retry_delays=("50ms",))):
        work.publish(b'{"number": 1}', message_id="rejected", headers={"kept": "yes"}, correlation_id="c", priority=3)
        work.publish(b'{"number": 2}', message_id="failing")
        work.publish(b'{"number": "secret"}', message_id="invalid")
        work.publish(b"{", message_id="no json")
        letters = {letter.message_id: letter for letter in work.broker.get_all(work.dead_letters, 4, 30)}
        work.wait_until_processed("max attempts")
    assert {name: letter.headers[REASON] for name, letter in letters.items()} == {
        "rejected": "rejected",
        "failing": "max attempts",
        "invalid": "undecodable",
        "no json": "undecodable",
    }
    assert letters["rejected"].headers[ERROR] == "no such customer"
    assert letters["failing"].headers[ERROR] == "ValueError: broken pipe"
    assert letters["failing"].headers[ATTEMPT] == 2
    assert "number: " in letters["invalid"].headers[ERROR]
    assert "secret" not in letters["invalid"].headers[ERROR]
    rejected = letters["rejected"]
    assert rejected.body == b'{"number": 1}'
    assert rejected.headers["kept"] == "yes"
    assert rejected.headers[ROUTING_KEY] == work.queue
    assert (rejected.properties["correlation_id"], rejected.properties["priority"]) == ("c", 3)
    assert rejected.properties["delivery_mode"] == 2
    assert work.broker.depth(work.queue) == 0


def test_a_message_is_not_retried_after_its_expiry(work: Work) -> None:
    attempts: list[str] = []

    def fail(event_id: str) -> None:
        attempts.append(event_id)
        raise ValueError("no")

    with work.worker(Consumer(fail, queue=work.queue, retry_delays=("100ms", "1m"))):
        work.publish(message_id="short", expiration=30)
        (letter,) = work.broker.get_all(work.dead_letters, 1, 30)
    # It returned from the first delay with the rest of its time to live; the second delay is longer than that.
    assert attempts == ["short", "short"]
    assert letter.headers[REASON] == "expired"
    assert letter.headers[ATTEMPT] == 2


def test_a_message_that_expires_while_it_waits_for_a_thread_is_not_handled(work: Work) -> None:
    handled: list[str] = []
    release = threading.Event()

    def hold(event_id: str) -> None:
        handled.append(event_id)
        release.wait(30)

    with work.worker(Consumer(hold, queue=work.queue), threads=1):
        work.publish(message_id="first")
        wait_for(lambda: handled == ["first"])
        work.publish(message_id="late", expiration=0.5)
        received = "outbox_consumer_received_total"
        wait_for(lambda: work.count(received, consumer=work.queue) == 2, message="the second is not received")
        deadline = time.time() + 1
        wait_for(lambda: time.time() > deadline)
        release.set()
        (letter,) = work.broker.get_all(work.dead_letters, 1, 30)
    assert handled == ["first"]
    assert (letter.message_id, letter.headers[REASON]) == ("late", "expired")


def test_on_stop_running_handlers_finish_and_other_messages_are_requeued(work: Work) -> None:
    began, release = threading.Event(), threading.Event()
    handled: list[str] = []

    def slow(event_id: str) -> None:
        began.set()
        assert release.wait(30)
        handled.append(event_id)

    with work.worker(Consumer(slow, queue=work.queue), threads=1, prefetch=10) as worker:
        for number in range(5):
            work.publish(message_id=str(number))
        assert began.wait(30)
        received = "outbox_consumer_received_total"
        wait_for(lambda: work.count(received, consumer=work.queue) == 5, message="not all are received")
        assert worker.status()["unfinished"] == 5
        threading.Timer(0.2, release.set).start()
    assert handled == ["0"]
    assert work.processed("requeued") == 4
    assert [message.message_id for message in work.broker.get_all(work.queue, 4)] == ["1", "2", "3", "4"]


def test_a_handler_that_does_not_return_is_abandoned_and_its_message_is_redelivered(work: Work) -> None:
    began, release = threading.Event(), threading.Event()

    def stuck() -> None:
        began.set()
        release.wait(60)

    async def forget_to_return() -> None:
        import asyncio

        began_async.set()
        await asyncio.sleep(600)

    began_async = threading.Event()
    other = f"{work.queue}.async"
    consumers: list[Consumer[..., Any]] = [Consumer(stuck, queue=work.queue), Consumer(forget_to_return, queue=other)]
    with work.worker(*consumers, shutdown_timeout_seconds=0.2):
        work.publish(message_id="a")
        work.broker.publish(b"{}", routing_key=other, message_id="b")
        assert began.wait(30)
        assert began_async.wait(30)
    assert [message.message_id for message in work.broker.get_all(work.queue, 1)] == ["a"]
    assert [message.message_id for message in work.broker.get_all(other, 1)] == ["b"]
    release.set()


def test_a_deleted_queue_is_declared_again_and_consumed(work: Work) -> None:
    handled: list[str] = []

    async def note(event_id: str) -> None:
        handled.append(event_id)

    with work.worker(Consumer(note, queue=work.queue)):
        work.publish(message_id="before")
        work.wait_until_processed("done")
        work.broker.delete_queue(work.queue)
        wait_for(lambda: _depth(work) is not None, deadline_seconds=60, message="the queue is not declared again")
        work.publish(message_id="after")
        work.wait_until_processed("done", 2)
    assert handled == ["before", "after"]


def test_a_retry_whose_queue_was_deleted_is_kept(work: Work) -> None:
    async def fail() -> None:
        raise ValueError("no")

    with work.worker(Consumer(fail, queue=work.queue, retry_delays=("2s",))):
        work.publish(message_id="lost?")
        work.wait_until_processed("retried")
    work.broker.delete_queue(work.queue)

    def returned() -> list[str | None]:
        kept = work.broker.take_what_is_there("outrider.unreturned")  # may hold messages of other tests too
        return [message.message_id for message in kept if message.routing_key == work.queue]

    assert wait_for(returned, deadline_seconds=60, message="it is lost") == ["lost?"]


def test_a_queue_that_exists_with_other_arguments_is_named(work: Work) -> None:
    async def note() -> None: ...

    work.broker.declare_queue(work.queue)
    with (
        pytest.raises(BrokerError, match=f"queue {work.queue} exists with other arguments"),
        work.worker(Consumer(note, queue=work.queue)),
    ):
        pass


def _depth(work: Work) -> int | None:
    from kombu.exceptions import ChannelError

    try:
        return work.broker.depth(work.queue)
    except ChannelError:
        return None


def test_a_message_that_hits_a_bug_of_the_worker_is_redelivered(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = threading.Event()

    def fail_once(received: Any, now: float, queue: str) -> Delivery:
        if not failed.is_set():
            failed.set()
            raise RuntimeError("a bug")
        return read_delivery(received, now, queue)

    monkeypatch.setattr(broker_session, "read_delivery", fail_once)

    def note(body: Any) -> None: ...

    with work.worker(Consumer(note, queue=work.queue)):
        work.publish()
        work.wait_until_processed("done")
    assert failed.is_set()
    assert work.broker.depth(work.queue) == 0


def test_after_a_replay_of_what_the_broker_buried_the_routing_key_is_the_messages_own(work: Work) -> None:
    seen: list[Any] = []
    exchange = work.broker.declare_exchange(type="topic")

    @consume("order.*", queue=work.queue, exchange=exchange)
    def note(message: Delivery, routing_key: str, attempt: int) -> None:
        seen.append((routing_key, message.exchange, message.queue, attempt))

    with work.worker(note):
        pass  # declares the queue
    work.broker.publish(b"{}", exchange=exchange, routing_key="order.placed", message_id="e", expiration=0.01)
    work.broker.wait_for_depth(work.dead_letters, 1)  # it expired in its queue
    hosts = BrokerHosts(work.broker.url)
    [letter] = find_dead_letters(hosts, work.queue, lambda letter: True, 10)
    assert (letter.routing_key, letter.reason) == ("order.placed", "expired")
    assert replay_dead_letters(hosts, work.queue, lambda letter: True, None) == 1
    with work.worker(note):
        work.wait_until_processed("done")
    assert seen == [("order.placed", exchange, work.queue, 1)]


def test_a_message_that_cannot_be_forwarded_is_not_acknowledged(work: Work) -> None:
    attempts: list[int] = []

    def fail_at_first(attempt: int) -> None:
        attempts.append(attempt)
        if attempt == 1:
            raise ValueError("not yet")

    with work.worker(Consumer(fail_at_first, queue=work.queue, retry_delays=("123ms",))):
        with work.broker.channel() as channel:
            channel.exchange_delete("outrider.delay.123ms")
        work.publish(message_id="e")
        work.wait_until_processed("done")
    # The delay exchange was missing: the message was requeued, the exchange declared again, and no attempt spent.
    assert attempts == [1, 1, 2]
    assert work.processed("retried") == 1
