"""
slot_retained_mb_during_outage: the most WAL that the slot retained while the broker was down and messages were
committed.

Relay and scheduler run with their defaults, except for the scheduler's cooldown, which only determines how soon rows
are delivered after the outage. The broker is stopped, messages are committed one by one at a steady rate, and the
broker is started again; then every message must arrive.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from bench.broker import declare_queue, delete_queue
from bench.figures import Figures
from bench.messages import EVENT_TYPE, HEADERS, body, event_id
from bench.scale import Scale
from bench.servers import BenchServers, OutboxDatabase, wait_until
from bench.steady_rate import steady_rate
from bench.timed_consumer import take_all
from outrider.producer import Outbox

QUEUE = "bench-outage"
SAMPLE_SECONDS = 0.2
COOLDOWN_SECONDS = 2
WARM_UP_SECONDS = 1.0


def measure(servers: BenchServers, scale: Scale, figures: Figures) -> None:
    url = servers.rabbitmq.url
    declare_queue(url, QUEUE)
    with (
        servers.outbox(handover_seconds=30) as database,
        servers.relay(database),
        servers.scheduler(database, broker_outage_cooldown_seconds=COOLDOWN_SECONDS) as scheduler,
        _sample_retained_wal(database) as retained,
    ):
        count = _commit(database, 0, scale.outage_rate, WARM_UP_SECONDS)
        before = max(retained)
        servers.rabbitmq.stop()
        try:
            during = _commit(database, count, scale.outage_rate, scale.outage_seconds)
            count += during
            largest = max(retained)
        finally:
            servers.rabbitmq.start()
        wait_until(
            lambda: _is_empty(database),
            scheduler,
            "rows remain after the outage",
            deadline_seconds=180,
            pause_seconds=0.2,
        )
    arrivals = take_all(url, QUEUE, count)
    arrivals.check(count)
    delete_queue(url, QUEUE)
    rate = during / scale.outage_seconds
    remarks = []
    if scale.outage_seconds < 60:
        remarks.append(f"an outage of {scale.outage_seconds:g} s instead of 60 s")
    if rate < 0.9 * scale.outage_rate:
        remarks.append(f"only {rate:.0f} messages per second were committed")
    figures.put("slot_retained_mb_during_outage", largest / 1e6, "; ".join(remarks) or None)
    figures.raw["outage"] = {
        "messages": count,
        "seconds": scale.outage_seconds,
        "achieved_rate": round(rate, 1),
        "retained_mb_before": round(before / 1e6, 2),
        "retained_mb_at_most": round(largest / 1e6, 2),
        "duplicates": arrivals.duplicates,
    }


def _commit(database: OutboxDatabase, first: int, rate: float, seconds: float) -> int:
    outbox = Outbox("", context=None)
    count = 0
    with psycopg.connect(database.dsn) as connection:
        for number in steady_rate(rate, seconds):
            outbox.publish(
                connection,
                EVENT_TYPE,
                body(first + number),
                routing_key=QUEUE,
                headers=HEADERS,
                event_id=event_id(first + number),
            )
            connection.commit()
            count += 1
    return count


def _is_empty(database: OutboxDatabase) -> bool:
    return bool(database.value("SELECT NOT EXISTS (SELECT FROM outbox)"))


@contextmanager
def _sample_retained_wal(database: OutboxDatabase) -> Iterator[list[int]]:
    """Sample the WAL bytes that the slot retains, several times a second, into the list."""
    samples = [0]
    ended = threading.Event()

    def sample() -> None:
        with database.connect() as connection:
            while not ended.wait(SAMPLE_SECONDS):
                row = connection.execute(
                    "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::bigint FROM pg_replication_slots "
                    "WHERE slot_name = %s",
                    [database.slot],
                ).fetchone()
                samples.append(0 if row is None else row[0])

    thread = threading.Thread(target=sample, name="retained-wal", daemon=True)
    thread.start()
    try:
        yield samples
    finally:
        ended.set()
        thread.join()
