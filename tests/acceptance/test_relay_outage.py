"""A broker outage loses no message, and does not make the database retain WAL."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import pytest

from outrider.embedded.rabbitmq import RabbitMQ
from tests.fixtures.broker import Broker
from tests.fixtures.proxy import FaultProxy
from tests.fixtures.services import Service
from tests.fixtures.stage import Stage
from tests.fixtures.waiting import wait_for

StartProxy = Callable[[str, int], FaultProxy]


@pytest.fixture
def proxy(fault_proxy: StartProxy, rabbit: Broker) -> FaultProxy:
    address = urlsplit(rabbit.url)
    assert address.hostname is not None
    assert address.port is not None
    return fault_proxy(address.hostname, address.port)


def relay_in_an_outage(stage: Stage, rabbit: Broker, proxy: FaultProxy, queue: str, **settings: Any) -> Service:
    """A relay that has delivered a message, and then lost its broker."""
    relay = stage.start_relay(proxy.through(rabbit.url), **settings)
    stage.insert(queue)
    rabbit.get_all(queue, 1)
    stage.wait_until_empty()
    proxy.refuse()
    proxy.cut()
    relay.wait_for_event("broker_outage")
    return relay


def test_in_a_short_outage_messages_are_held_and_none_is_left_to_the_scheduler(
    stage: Stage, rabbit: Broker, proxy: FaultProxy
) -> None:
    queue = rabbit.declare_queue()
    relay = relay_in_an_outage(stage, rabbit, proxy, queue, hold_seconds=30)
    event_ids = stage.insert(queue, 20)
    proxy.heal()
    relay.wait_for_event("broker_available")
    assert [message.message_id for message in rabbit.get_all(queue, 20)] == event_ids
    stage.wait_until_empty()
    assert not [event for event in relay.events() if event["event"] == "shedding"]


def test_keepalives_do_not_move_the_confirmed_position_past_an_unsettled_row(
    stage: Stage, rabbit: Broker, proxy: FaultProxy
) -> None:
    """Its transaction and the keepalive after it arrive together: the confirmed position stays before the row."""
    queue = rabbit.declare_queue()
    relay = relay_in_an_outage(stage, rabbit, proxy, queue, hold_seconds=60, status_interval_seconds=0.1)
    ((before,),) = stage.connection.execute("SELECT pg_current_wal_insert_lsn()").fetchall()
    os.kill(relay.pid, signal.SIGSTOP)
    stage.insert(queue)
    ((after,),) = stage.connection.execute("SELECT pg_current_wal_lsn()").fetchall()
    sent = "SELECT sent_lsn >= %s::pg_lsn FROM pg_stat_replication WHERE pid = %s"
    sender = stage.slot_state()["active_pid"]
    wait_for(lambda: stage.connection.execute(sent, [after, sender]).fetchone() == (True,))
    os.kill(relay.pid, signal.SIGCONT)
    replies = set()

    def several_replies() -> bool:
        stage.connection.execute("SELECT pg_logical_emit_message(false, 'test', 'other WAL')")
        replied = "SELECT reply_time FROM pg_stat_replication WHERE pid = %s"
        replies.add(stage.connection.execute(replied, [sender]).fetchone())
        return len(replies) > 4

    wait_for(several_replies)
    ((held,),) = stage.connection.execute(
        "SELECT confirmed_flush_lsn <= %s::pg_lsn FROM pg_replication_slots WHERE slot_name = %s", [before, stage.slot]
    ).fetchall()
    assert held
    proxy.heal()
    rabbit.get_all(queue, 1)
    stage.wait_until_empty()


def test_in_a_long_outage_rows_are_handed_over_and_the_slot_advances(
    stage: Stage, rabbit: Broker, proxy: FaultProxy
) -> None:
    queue = rabbit.declare_queue()
    relay = relay_in_an_outage(stage, rabbit, proxy, queue, hold_seconds=0.3)
    stage.insert(queue, 50)
    relay.wait_for_event("shedding")
    stage.insert(queue, 50)
    stage.wait_until_confirmed()
    rows = stage.rows()
    assert len(rows) == 100
    assert all(row["owner"] == "scheduler" and row["due"] for row in rows)
    assert all(row["attempts"] == 0 and row["last_error"] is None for row in rows)

    proxy.heal()
    relay.wait_for_event("broker_available")
    (fresh,) = stage.insert(queue)
    assert rabbit.get_all(queue, 1)[0].message_id == fresh
    wait_for(lambda: len(stage.rows()) == 100)  # those handed over


def test_a_silent_broker_is_detected_and_its_rows_are_handed_over(
    stage: Stage, rabbit: Broker, proxy: FaultProxy
) -> None:
    queue = rabbit.declare_queue()
    relay = stage.start_relay(
        proxy.through(rabbit.url), send_timeout_seconds=1, connect_timeout_seconds=1, hold_seconds=0.5
    )
    stage.insert(queue)
    rabbit.get_all(queue, 1)
    stage.wait_until_empty()
    proxy.blackhole()
    stage.insert(queue, 10)
    relay.wait_for_event("shedding")
    wait_for(lambda: sum(row["owner"] == "scheduler" for row in stage.rows()) == 10)
    stage.wait_until_confirmed()


def test_messages_whose_confirms_are_lost_are_published_again(stage: Stage, rabbit: Broker, proxy: FaultProxy) -> None:
    queue = rabbit.declare_queue()
    relay = stage.start_relay(proxy.through(rabbit.url), hold_seconds=30)
    stage.insert(queue)
    rabbit.get_all(queue, 1)
    stage.wait_until_empty()
    proxy.blackhole("to_client")
    event_ids = stage.insert(queue, 5)
    rabbit.wait_for_depth(queue, 5)
    proxy.cut()
    proxy.heal()
    relay.wait_for_event("broker_available")
    stage.wait_until_empty()
    received = [message.message_id for message in rabbit.take_what_is_there(queue)]
    assert set(received) == set(event_ids)
    assert len(received) == 10


def test_a_blocked_broker_is_an_outage_and_recovers(stage: Stage, disposable_rabbitmq: RabbitMQ) -> None:
    broker = Broker(disposable_rabbitmq.url)
    queue = broker.declare_queue()
    relay = stage.start_relay(broker.url, hold_seconds=0.3)
    stage.insert(queue)
    broker.get_all(queue, 1)
    stage.wait_until_empty()
    disposable_rabbitmq.ctl("set_vm_memory_high_watermark", "absolute", "1MB")
    try:
        stage.insert(queue, 10)
        relay.wait_for_event("shedding")
        wait_for(lambda: sum(row["owner"] == "scheduler" for row in stage.rows()) == 10)
        stage.wait_until_confirmed()
    finally:
        disposable_rabbitmq.ctl("set_vm_memory_high_watermark", "0.8")
    relay.wait_for_event("broker_available")
    (fresh,) = stage.insert(queue)
    wait_for(lambda: fresh in {message.message_id for message in broker.take_what_is_there(queue)})


def test_a_broker_that_is_killed_and_restarted_gets_new_messages(stage: Stage, disposable_rabbitmq: RabbitMQ) -> None:
    broker = Broker(disposable_rabbitmq.url)
    queue = broker.declare_queue()
    relay = stage.start_relay(broker.url, hold_seconds=0.2)
    stage.insert(queue, 10)
    stage.wait_until_empty()
    disposable_rabbitmq.ctl("eval", "mnesia:sync_log().")  # without it, the kill would lose the new queue
    disposable_rabbitmq.kill()
    relay.wait_for_event("shedding")
    stage.insert(queue, 5)
    wait_for(lambda: sum(row["owner"] == "scheduler" for row in stage.rows()) == 5)
    disposable_rabbitmq.start()
    relay.wait_for_event("broker_available", 60)
    (fresh,) = stage.insert(queue)
    received = [message.message_id for message in broker.get_all(queue, 11)]
    assert received[-1] == fresh
    wait_for(lambda: stage.count() == 5)


def test_the_relay_exits_if_the_broker_is_never_reached_and_the_slot_has_advanced(stage: Stage) -> None:
    stage.insert("anywhere", 20)
    relay = stage.start_relay("amqp://guest:hunter2@127.0.0.1:1//", wait=None)
    assert relay.wait() == 1
    error = relay.output().splitlines()[-1]
    assert error.startswith("cdc-relay: error: ")
    assert "127.0.0.1:1" in error
    assert "hunter2" not in relay.output()
    assert all(row["owner"] == "scheduler" and row["due"] for row in stage.rows())
    assert stage.slot_state()["behind_bytes"] < 100_000
