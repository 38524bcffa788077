"""
relay_vs_broker_limit: messages per second of the relay, over what the broker takes from a client that only sends.

The rows are committed in transactions of 100, and drained when every one of them is settled, that is, deleted after
the broker's confirm. Each side sends into an empty durable queue; afterwards every message is taken from it and its id
checked.
"""

from __future__ import annotations

from statistics import median

from bench.arrivals import take_all
from bench.blast import Blast
from bench.broker import declare_queue, delete_queue
from bench.drain import Backlog
from bench.figures import Figures, ratio_of_medians, rounded
from bench.machine import cpu_seconds
from bench.scale import Scale
from bench.stage import Stage
from bench.traffic import fill

QUEUE = "bench-relay"
WARM_UP_ROWS = 2_000


def measure(stage: Stage, scale: Scale, figures: Figures) -> None:
    url = stage.rabbitmq.url
    ours: list[float] = []
    limit: list[float] = []
    cpu: list[float] = []
    with stage.outbox() as database, stage.relay(database) as relay:
        backlog = Backlog(
            database.dsn, "outbox", relay, url, QUEUE, lambda connection, rows: fill(connection, QUEUE, rows)
        )
        backlog.drain(WARM_UP_ROWS)
        _blast(url, WARM_UP_ROWS)
        for _ in range(scale.rounds):
            before = cpu_seconds(relay.pid)
            ours.append(backlog.drain(scale.relay_rows))
            cpu.append((cpu_seconds(relay.pid) - before) / scale.relay_rows * 1e6)
            limit.append(_blast(url, scale.relay_rows))
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


def _blast(url: str, messages: int) -> float:
    declare_queue(url, QUEUE)
    blast = Blast(url, QUEUE, messages)
    seconds = blast.run()
    blast.close()
    take_all(url, QUEUE, messages).check(messages)
    return messages / seconds
