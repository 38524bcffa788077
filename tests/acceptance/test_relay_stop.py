"""How a relay stops: SIGTERM, a second signal, SIGKILL. No message is lost in any case."""

from __future__ import annotations

import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.fixtures.broker import Broker
from tests.fixtures.proxy import FaultProxy
from tests.fixtures.servers import address_of
from tests.fixtures.stage import Stage
from tests.fixtures.waiting import wait_for


@contextmanager
def inserting(stage: Stage, queue: str) -> Iterator[list[str]]:
    """Commit rows continuously, in small transactions, until the block ends. Yields their event ids."""
    event_ids: list[str] = []
    done = threading.Event()

    def insert() -> None:
        with stage.database.connect() as connection:
            while not done.wait(0.005):
                event_ids.extend(stage.insert_with(connection, queue, 10))

    thread = threading.Thread(target=insert)
    thread.start()
    try:
        yield event_ids
    finally:
        done.set()
        thread.join()


def test_restarts_under_load_publish_no_message_twice(stage: Stage, rabbit: Broker) -> None:
    queue = rabbit.declare_queue()
    relay = stage.start_relay(rabbit.url)
    with inserting(stage, queue) as event_ids:
        for _ in range(2):
            relay.wait_for_event("caught_up")
            rabbit.wait_for_depth(queue, rabbit.depth(queue) + 200)
            assert relay.stop() == 0
            relay = stage.start_relay(rabbit.url)
    stage.wait_until_empty(30)
    received = Counter(message.message_id for message in rabbit.take_what_is_there(queue))
    assert received == Counter(event_ids)


def test_sigkill_under_load_repeats_at_most_the_unsettled_messages(stage: Stage, rabbit: Broker) -> None:
    queue = rabbit.declare_queue()
    relay = stage.start_relay(rabbit.url, window_messages=500)
    with inserting(stage, queue) as event_ids:
        rabbit.wait_for_depth(queue, 200)
        relay.kill()
        stage.start_relay(rabbit.url, window_messages=500)
    stage.wait_until_empty(30)
    received = Counter(message.message_id for message in rabbit.take_what_is_there(queue))
    repeated = sum(count - 1 for count in received.values())
    print(f"repeated after SIGKILL: {repeated}")
    assert set(received) == set(event_ids)
    assert repeated <= 500


def test_sigterm_during_an_outage_hands_rows_over_and_exits_with_zero(
    stage: Stage, rabbit: Broker, fault_proxy: Callable[[str, int], FaultProxy]
) -> None:
    proxy = fault_proxy(*address_of(rabbit.url))
    relay = stage.start_relay(proxy.through(rabbit.url), hold_seconds=60, shutdown_timeout_seconds=0.5)
    proxy.refuse()
    proxy.cut()
    relay.wait_for_event("broker_outage")
    stage.insert("anywhere", 10)
    wait_for(lambda: stage.slot_state()["behind_bytes"] > 0)
    assert relay.stop() == 0
    rows = stage.rows()
    assert len(rows) == 10
    assert all(row["owner"] == "relay" or row["due"] for row in rows)
    workers = stage.connection.execute("SELECT count(*) FROM outbox_worker").fetchone()
    assert workers == (0,)


def test_a_second_signal_ends_the_relay_at_once(
    stage: Stage, rabbit: Broker, fault_proxy: Callable[[str, int], FaultProxy]
) -> None:
    queue = rabbit.declare_queue()
    proxy = fault_proxy(*address_of(rabbit.url))
    relay = stage.start_relay(proxy.through(rabbit.url), shutdown_timeout_seconds=60, send_timeout_seconds=25)
    stage.insert(queue)
    rabbit.get_all(queue, 1)
    stage.wait_until_empty()
    proxy.blackhole()
    stage.insert(queue)
    wait_for(lambda: stage.slot_state()["behind_bytes"] > 0)
    relay.signal(signal.SIGTERM)
    relay.wait_for_event("draining")
    relay.signal(signal.SIGTERM)
    assert relay.wait(5) == 128 + signal.SIGTERM
    assert stage.count() == 1
