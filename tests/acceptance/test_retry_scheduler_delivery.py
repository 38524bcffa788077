"""How claimed rows are delivered: the backoff table, leases that end, and a broker that is away or blocked."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from outrider.delivery.publisher import Publisher, open_publisher
from outrider.delivery.retry_policy import RetryPolicy
from outrider.embedded.rabbitmq import RabbitMQ
from outrider.retry_scheduler.claim import Claimer
from outrider.retry_scheduler.deliver import Deliveries
from outrider.retry_scheduler.settlement import BatchSettlement
from outrider.storage.message import Message
from outrider.storage.store import Store
from tests.fixtures.broker import Broker
from tests.fixtures.database import Database
from tests.fixtures.proxy import FaultProxy
from tests.fixtures.rows import ids_in, insert_rows, make_due, query, store_of
from tests.fixtures.servers import address_of
from tests.fixtures.waiting import wait_for

LEASE = 60.0
SEND_TIMEOUT = 10.0
POLICY = RetryPolicy(5, 120, 3600)


class Clock:
    """Monotonic time that a test can advance."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead


@pytest.fixture
def store(database: Database) -> Iterator[Store]:
    with store_of(database) as store:
        yield store


@pytest.fixture
def publisher(rabbit: Broker) -> Iterator[Publisher]:
    publisher = open_publisher(rabbit.url, send_timeout_seconds=SEND_TIMEOUT)
    publisher.connect()
    yield publisher
    publisher.close()


def deliver_due(
    store: Store, publisher: Publisher, policy: RetryPolicy, clock: Clock, late_by: float = 0
) -> BatchSettlement:
    """Claim what is due, send it `late_by` seconds after the claim, and settle it. Returns the settlement."""
    batch = Claimer("s", batch_size=100, lease_seconds=LEASE, clock=clock).claim(store)
    deliveries = Deliveries(publisher, policy, send_timeout_seconds=SEND_TIMEOUT, clock=clock)
    clock.ahead += late_by
    deliveries.start(batch)

    def done() -> bool:
        deliveries.receive(0.1)
        return not deliveries.unresolved

    wait_for(done, message="messages have no outcome")
    ((_, settlement),) = deliveries.take_settlements()
    written = replace(settlement)  # writing a settlement empties it
    assert settlement.write(store, archive=False, cooldown_seconds=30) == 0
    return written


def ids_of(messages: list[Message]) -> list[int]:
    return [message.id for message in messages]


def test_the_backoff_table_of_the_defaults_is_what_the_rows_say(store: Store, publisher: Publisher) -> None:
    (row,) = insert_rows(store.connection, routing_key="nowhere")
    policy = RetryPolicy(5, 120, 3600, jitter=random.Random(7).random)
    waits: list[float] = []
    for _ in range(4):
        deliver_due(store, publisher, policy, Clock())
        waits += query(
            store.connection, "SELECT extract(epoch FROM next_attempt_at - last_failed_at)::float8 FROM outbox"
        )
        make_due(store.connection, [row])
    deliver_due(store, publisher, policy, Clock())
    letters = query(store.connection, "SELECT id, reason, attempts FROM outbox_dead_letter")
    assert letters == [(row, "max attempts", 5)]
    # A message without a queue is tried soon: its consumer may just be starting. Then the usual backoff applies.
    bounds = [(5, 5.5), (30, 33), (180, 198), (960, 972)]
    assert all(low <= wait <= high for wait, (low, high) in zip(waits, bounds, strict=True))


def test_rows_whose_lease_could_end_before_the_answer_are_released_unsent(
    store: Store, publisher: Publisher, rabbit: Broker
) -> None:
    queue = rabbit.declare_queue()
    ids = insert_rows(store.connection, 2, routing_key=queue) + insert_rows(
        store.connection, 2, routing_key=queue, ordering_key="k"
    )
    settlement = deliver_due(store, publisher, POLICY, Clock(), late_by=LEASE - SEND_TIMEOUT + 1)
    assert sorted(ids_of(settlement.released)) == ids
    assert rabbit.depth(queue) == 0
    settlement = deliver_due(store, publisher, POLICY, Clock(), late_by=LEASE - SEND_TIMEOUT - 5)
    assert sorted(ids_of(settlement.confirmed)) == ids
    assert query(store.connection, "SELECT count(*) FROM outbox") == [0]


def test_a_message_that_expires_between_claim_and_send_is_buried_unsent(
    store: Store, publisher: Publisher, rabbit: Broker
) -> None:
    queue = rabbit.declare_queue()
    insert_rows(store.connection, routing_key=queue, ordering_key="k")
    store.connection.execute("UPDATE outbox SET expires_at = clock_timestamp() + interval '20 seconds'")
    (behind,) = insert_rows(store.connection, routing_key=queue, ordering_key="k")
    settlement = deliver_due(store, publisher, POLICY, Clock(), late_by=25)
    assert ids_of(settlement.confirmed) == [behind]
    assert query(store.connection, "SELECT reason, attempts FROM outbox_dead_letter") == [("expired", 0)]


def test_without_a_connection_everything_is_deferred_and_the_outage_is_reported(
    store: Store, publisher: Publisher
) -> None:
    ids = insert_rows(store.connection, 2) + insert_rows(store.connection, 2, ordering_key="k")
    batch = Claimer("s", batch_size=100, lease_seconds=LEASE).claim(store)
    deliveries = Deliveries(publisher, POLICY, send_timeout_seconds=SEND_TIMEOUT)
    publisher.close()
    deliveries.start(batch)
    ((_, settlement),) = deliveries.take_settlements()
    assert sorted(ids_of(settlement.deferred)) == ids
    answered, outage = deliveries.take_broker_report()
    assert not answered
    assert outage is not None
    assert deliveries.take_broker_report() == (False, None)


def test_a_blocked_broker_is_an_outage_after_the_send_timeout(store: Store, disposable_rabbitmq: RabbitMQ) -> None:
    broker = Broker(disposable_rabbitmq.url)
    queue = broker.declare_queue()
    (row,) = insert_rows(store.connection, routing_key=queue)
    publisher = open_publisher(disposable_rabbitmq.url, send_timeout_seconds=1)
    publisher.connect()
    disposable_rabbitmq.ctl("set_vm_memory_high_watermark", "absolute", "1")
    try:
        batch = Claimer("s", batch_size=1, lease_seconds=LEASE).claim(store)
        deliveries = Deliveries(publisher, POLICY, send_timeout_seconds=1)
        deliveries.start(batch)

        def resolved() -> bool:
            deliveries.receive(0.1)
            return not deliveries.unresolved

        wait_for(resolved, message="it waits for a blocked broker")
        ((_, settlement),) = deliveries.take_settlements()
        assert ids_of(settlement.deferred) == [row]
        outage = deliveries.take_broker_report().outage
        assert outage is not None
        assert outage.error == "Blocked"
    finally:
        publisher.close()
        disposable_rabbitmq.kill()


def test_a_row_that_is_claimed_again_while_it_is_on_its_way_is_dropped_and_later_delivered(
    store: Store, rabbit: Broker, fault_proxy: Callable[[str, int], FaultProxy]
) -> None:
    """As after a jump of the database's clock: the lease has ended there, and not here."""
    queue = rabbit.declare_queue()
    proxy = fault_proxy(*address_of(rabbit.url))
    publisher = open_publisher(proxy.through(rabbit.url), send_timeout_seconds=SEND_TIMEOUT)
    publisher.connect()
    deliveries = Deliveries(publisher, POLICY, send_timeout_seconds=SEND_TIMEOUT)
    claimer = Claimer("s", batch_size=100, lease_seconds=LEASE)
    ids = insert_rows(store.connection, 3, routing_key=queue, ordering_key="k")
    first = claimer.claim(store)
    proxy.blackhole("to_client")
    deliveries.start(first)
    assert not deliveries.drop_overdue()
    make_due(store.connection, ids)
    again = claimer.claim(store)
    assert ids_of(list(again.messages)) == ids
    assert deliveries.drop_overdue(again)
    assert not publisher.connected
    deliveries.release(again)
    assert deliveries.held_bytes == first.byte_count + again.byte_count
    for _, settlement in deliveries.take_settlements():
        settlement.write(store, archive=False, cooldown_seconds=0)
    assert deliveries.held_bytes == 0
    proxy.heal()
    publisher.connect()
    deliveries.start(claimer.claim(store))
    wait_for(lambda: deliveries.receive(0.1) or not deliveries.unresolved)
    wait_for(lambda: not deliveries.receive(0.1) and not deliveries.unresolved)
    for _, settlement in deliveries.take_settlements():
        assert settlement.write(store, archive=False, cooldown_seconds=0) == 0
    assert ids_in(store.connection) == []
    publisher.close()
