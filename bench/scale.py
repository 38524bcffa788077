"""How much a run measures: FULL for published figures, QUICK for daily use."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scale:
    name: str
    rounds: int
    """Number of measurements of each side of a ratio; medians count."""
    relay_rows: int
    latency_rate: int
    latency_rounds: int
    latency_seconds: float
    """Many short rounds: a short disturbance of the machine spoils few of them, and not the median."""
    latency_warm_up_seconds: float
    """Start of each round that does not count."""
    latency_rounds_on_disk: int
    """Rounds with files on disk: for the raw figures only, unless there is no tmpfs."""
    bulk_messages: int
    bulk_rounds: int
    claim_rows_small: int
    claim_rows_large: int
    memory_rows: int
    outage_rate: int
    outage_seconds: float
    peer_rounds: int
    """Rounds that compare our drains with the peer's."""
    peer_rounds_unconsumed: int
    """Rounds without a consumer: for the raw figures only."""
    peer_rows: int
    """Fewer rows than ours, because the peer is slow."""
    scheduler_rows: int
    enqueue_calls: int
    decode_rows: int
    debezium_warm_up_readings: int
    """Upper limit."""
    worker_messages: int
    append_events: int
    """With one writer; twice as many with eight."""
    read_events_small: int
    read_events_large: int
    read_pages: int
    part_seconds: float
    """A measurement that takes longer is stopped."""


FULL = Scale(
    name="full",
    rounds=3,
    relay_rows=100_000,
    latency_rate=1_000,
    latency_rounds=15,
    latency_seconds=3,
    latency_warm_up_seconds=1,
    latency_rounds_on_disk=5,
    bulk_messages=1_000,
    bulk_rounds=41,
    claim_rows_small=10_000,
    claim_rows_large=1_000_000,
    memory_rows=1_000_000,
    outage_rate=500,
    outage_seconds=60,
    peer_rounds=5,
    peer_rounds_unconsumed=3,
    peer_rows=10_000,
    scheduler_rows=50_000,
    enqueue_calls=2_000,
    decode_rows=200_000,
    debezium_warm_up_readings=5,
    worker_messages=20_000,
    append_events=4_000,
    read_events_small=100_000,
    read_events_large=10_000_000,
    read_pages=200,
    part_seconds=900,
)

QUICK = Scale(
    name="quick",
    rounds=2,
    relay_rows=10_000,
    latency_rate=1_000,
    latency_rounds=5,
    latency_seconds=1,
    latency_warm_up_seconds=0.3,
    latency_rounds_on_disk=0,
    bulk_messages=1_000,
    bulk_rounds=7,
    claim_rows_small=10_000,
    claim_rows_large=50_000,
    memory_rows=20_000,
    outage_rate=500,
    outage_seconds=3,
    peer_rounds=2,
    peer_rounds_unconsumed=1,
    peer_rows=200,
    scheduler_rows=5_000,
    enqueue_calls=300,
    decode_rows=15_000,
    debezium_warm_up_readings=2,
    worker_messages=3_000,
    append_events=500,
    read_events_small=50_000,
    read_events_large=300_000,
    read_pages=40,
    part_seconds=120,
)
