"""
relay_vs_broker_limit: messages per second of the relay, over the rate at which the broker confirms a client that only
publishes.

Rows are committed in transactions of 100. The backlog is drained when every row is settled, that is, deleted after the
broker's confirm. Each side publishes to an empty durable queue; afterwards every message is taken and its id checked.
"""

from __future__ import annotations

from statistics import median

from bench.backlog import Backlog
from bench.broker import declare_queue, delete_queue
from bench.bulk_publisher import BulkPublisher
from bench.figures import Figures, ratio_of_medians, rounded
from bench.machine import cpu_seconds
from bench.messages import fill
from bench.scale import Scale
from bench.servers import BenchServers
from bench.timed_consumer import take_all

QUEUE = "bench-relay"
WARM_UP_ROWS = 2_000


def measure(servers: BenchServers, scale: Scale, figures: Figures) -> None:
    url = servers.rabbitmq.url
    ours: list[float] = []
    limit: list[float] = []
    cpu: list[float] = []
    with servers.outbox() as database, servers.relay(database) as relay:
        backlog = Backlog(
            database.dsn, "outbox", relay, url, QUEUE, lambda connection, rows: fill(connection, QUEUE, rows)
        )
        backlog.drain(WARM_UP_ROWS)
        _publish_directly(url, WARM_UP_ROWS)
        for _ in range(scale.rounds):
            before = cpu_seconds(relay.pid)
            ours.append(backlog.drain(scale.relay_rows))
            cpu.append((cpu_seconds(relay.pid) - before) / scale.relay_rows * 1e6)
            limit.append(_publish_directly(url, scale.relay_rows))
    delete_queue(url, QUEUE)
    figures.put("relay_vs_broker_limit", ratio_of_medians(ours, limit))
    figures.raw["relay"] = {
        "rows": scale.relay_rows,
        "relay_messages_per_second": rounded(ours),
        "broker_limit_messages_per_second": rounded(limit),
        "relay_cpu_microseconds_per_message": rounded(cpu),
        "median_relay": round(median(ours)),
        "median_broker_limit": round(median(limit)),
    }


def _publish_directly(url: str, messages: int) -> float:
    declare_queue(url, QUEUE)
    publisher = BulkPublisher(url, QUEUE, messages)
    seconds = publisher.run()
    publisher.close()
    take_all(url, QUEUE, messages).check(messages)
    return messages / seconds
