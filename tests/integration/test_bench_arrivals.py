"""The consumer of the benchmarks: what it says has arrived did, and what it took is gone from the queue."""

from __future__ import annotations

import pytest

from bench.arrivals import consuming
from bench.blast import Blast
from bench.stage import BenchmarkError
from tests.fixtures.broker import Broker

MESSAGES = 2_000


@pytest.mark.parametrize("prefetch", [0, 7, 1_000])
def test_all_messages_are_taken_for_good(rabbit: Broker, prefetch: int) -> None:
    queue = rabbit.declare_queue()
    with consuming(rabbit.url, queue, MESSAGES, prefetch=prefetch) as consumer:
        publish(rabbit, queue)
        arrivals = consumer.result()
    arrivals.check(MESSAGES)
    assert arrivals.duplicates == 0
    # With the consumer's connection gone, what it had not acknowledged would be back.
    assert rabbit.take_what_is_there(queue) == []
    with pytest.raises(BenchmarkError, match=f"1 of {MESSAGES + 1} messages did not arrive"):
        arrivals.check(MESSAGES + 1)


def publish(rabbit: Broker, queue: str) -> None:
    blast = Blast(rabbit.url, queue, MESSAGES)
    blast.run()
    blast.close()
