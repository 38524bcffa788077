"""
relay_vs_broker_limit: messages per second of the relay, over what the broker takes from a client that only sends.

The relay is connected and suspended while the rows are committed, in transactions of 100; the time runs from its
resumption until every row is settled, that is, deleted after the broker's confirm. Each side sends into an empty
durable queue; afterwards every message is taken from it and its id checked.
"""

from __future__ import annotations

import signal
import time
from statistics import median

from bench.arrivals import take_all
from bench.blast import Blast
from bench.broker import declare_queue, delete_queue
from bench.figures import Figures, ratio_of_medians, rounded
from bench.machine import cpu_seconds
from bench.scale import Scale
from bench.stage import OutboxDatabase, Stage, wait_until
from bench.traffic import fill
from outbox.embedded.process import ServerProcess

QUEUE = "bench-relay"
WARM_UP_ROWS = 2_000


def measure(stage: Stage, scale: Scale, figures: Figures) -> None:
    url = stage.rabbitmq.url
    ours: list[float] = []
    limit: list[float] = []
    cpu: list[float] = []
    declare_queue(url, QUEUE)
    with stage.outbox() as database, stage.relay(database) as relay:
        _drain(stage, database, relay, WARM_UP_ROWS)
        _blast(url, WARM_UP_ROWS)
        for _ in range(scale.rounds):
            before = cpu_seconds(relay.pid)
            ours.append(_drain(stage, database, relay, scale.relay_rows))
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


def _drain(stage: Stage, database: OutboxDatabase, relay: ServerProcess, rows: int) -> float:
    with database.connect() as connection:
        relay.send_signal(signal.SIGSTOP)
        try:
            fill(connection, QUEUE, rows)
            newest = connection.execute("SELECT max(id) FROM outbox").fetchone()
        finally:
            started = time.perf_counter()
            relay.send_signal(signal.SIGCONT)
        assert newest is not None

        def newest_is_gone() -> bool:
            return connection.execute("SELECT FROM outbox WHERE id = %s", newest).fetchone() is None

        def all_are_gone() -> bool:
            return connection.execute("SELECT FROM outbox LIMIT 1").fetchone() is None

        # By the primary key while it runs: a look at the whole table would take from the processor that is measured.
        wait_until(newest_is_gone, relay, "the relay does not drain the outbox")
        wait_until(all_are_gone, relay, "the relay leaves rows behind")
    seconds = time.perf_counter() - started
    take_all(stage.rabbitmq.url, QUEUE, rows).check(rows)
    return rows / seconds


def _blast(url: str, messages: int) -> float:
    blast = Blast(url, QUEUE, messages)
    seconds = blast.run()
    blast.close()
    take_all(url, QUEUE, messages).check(messages)
    return messages / seconds
