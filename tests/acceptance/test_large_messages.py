"""Large messages: memory is bounded by bytes, not only by rows, and a slow line neither ends nor stops a service."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.broker import Broker
from tests.fixtures.proxy import FaultProxy
from tests.fixtures.rows import insert_rows
from tests.fixtures.servers import address_of
from tests.fixtures.services import Service
from tests.fixtures.stage import Stage
from tests.fixtures.waiting import wait_for

MEGABYTE = 1_000_000


def memory_megabytes(service: Service, line: str = "VmHWM") -> float:
    """The largest resident memory so far; with VmRSS, the present one."""
    for each in Path(f"/proc/{service.pid}/status").read_text().splitlines():
        if each.startswith(f"{line}:"):
            return int(each.split()[1]) * 1024 / MEGABYTE
    raise AssertionError(f"no {line}")


def start(stage: Stage, service: str, broker_url: str, **settings: Any) -> Service:
    if service == "relay":
        relay = stage.start_relay(broker_url, **settings)
        relay.wait_for_event("caught_up")
        return relay
    scheduler = stage.run_service("outrider.retry_scheduler", env=stage.environment(broker_url, **settings))
    scheduler.wait_for_event("scheduler_active")
    return scheduler


def insert_large(stage: Stage, queue: str, count: int, megabytes: float, service: str) -> None:
    """In transactions of their own. PostgreSQL compresses the payloads."""
    payload = b"x" * round(megabytes * MEGABYTE)
    for _ in range(count):
        if service == "relay":
            insert_rows(stage.connection, routing_key=queue, payload=payload, due_in="1 hour")
        else:
            insert_rows(stage.connection, routing_key=queue, payload=payload, owner="scheduler")


# Beside the window, or the two batches: the buffer of a connection holds the largest message up to twice.
@pytest.mark.parametrize(("service", "limit_megabytes"), [("relay", 64 + 60), ("scheduler", 2 * 16 + 80)])
def test_many_large_messages_take_bounded_memory(
    stage: Stage, rabbit: Broker, service: str, limit_megabytes: float
) -> None:
    queue = rabbit.declare_queue(queue_arguments={"x-max-length": 1})
    if service == "relay":
        running = start(stage, service, rabbit.url)
        before = memory_megabytes(running)
        insert_large(stage, queue, 60, 10, service)
    else:
        insert_large(stage, queue, 60, 10, service)
        running = start(stage, service, rabbit.url)
        before = 50.0
    stage.wait_until_empty(120)
    grown = memory_megabytes(running) - before
    print(f"{service}: memory grew by {grown:.0f} MB")
    assert grown < limit_megabytes


@pytest.mark.parametrize("service", ["relay", "scheduler"])
def test_one_large_message_takes_a_small_multiple_of_its_size(stage: Stage, rabbit: Broker, service: str) -> None:
    queue = rabbit.declare_queue(queue_arguments={"x-max-length": 1})
    running = start(stage, service, rabbit.url)
    before = memory_megabytes(running)
    insert_large(stage, queue, 1, 60, service)
    stage.wait_until_empty()
    grown = memory_megabytes(running) - before
    print(f"{service}: memory grew by {grown:.0f} MB, {grown / 60:.1f} times the payload")
    assert grown < 60 * 4


def test_a_line_so_slow_that_leases_end_delivers_everything_and_no_row_is_claimed_while_it_is_on_its_way(
    stage: Stage, rabbit: Broker, fault_proxy: Callable[[str, int], FaultProxy]
) -> None:
    queue = rabbit.declare_queue()
    insert_large(stage, queue, 30, 0.7, "scheduler")
    proxy = fault_proxy(*address_of(rabbit.url))
    proxy.throttle(1.5 * MEGABYTE, "to_server")
    scheduler = start(
        stage,
        "scheduler",
        proxy.through(rabbit.url),
        lease_seconds=6,
        send_timeout_seconds=5,
        broker_outage_cooldown_seconds=1,
    )
    scheduler.wait_for_line("the lease ends, and the broker has not confirmed all messages")
    wait_for(lambda: stage.count() < 25, message="nothing is delivered over the slow line")
    proxy.heal()
    stage.wait_until_empty()
    assert scheduler.stop() == 0
    received = Counter(message.message_id for message in rabbit.take_what_is_there(queue))
    assert len(received) == 30
    print(f"sent again: {sum(received.values()) - 30}")
