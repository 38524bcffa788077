"""The consumer of the benchmarks reports every message and removes it from the queue."""

from __future__ import annotations

import pytest

from bench.bulk_publisher import BulkPublisher
from bench.servers import BenchmarkError
from bench.timed_consumer import consuming
from tests.fixtures.broker import Broker

MESSAGES = 2_000


@pytest.mark.parametrize("prefetch", [0, 7, 1_000])
def test_all_messages_are_reported_and_removed_from_the_queue(rabbit: Broker, prefetch: int) -> None:
    queue = rabbit.declare_queue()
    with consuming(rabbit.url, queue, MESSAGES, prefetch=prefetch) as consumer:
        publish(rabbit, queue)
        arrivals = consumer.result()
    arrivals.check(MESSAGES)
    assert arrivals.duplicates == 0
    # The connection is closed: unacknowledged messages would be in the queue again.
    assert rabbit.take_what_is_there(queue) == []
    with pytest.raises(BenchmarkError, match=f"1 of {MESSAGES + 1} messages did not arrive"):
        arrivals.check(MESSAGES + 1)


def publish(rabbit: Broker, queue: str) -> None:
    publisher = BulkPublisher(rabbit.url, queue, MESSAGES)
    publisher.run()
    publisher.close()
