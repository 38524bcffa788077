"""
claim_cost_1m_vs_10k: time per claimed row with a long backlog, over the time with a short one.

Every row is due and has an ordering key of its own, so that the claim looks for the head of each key; none is
delivered. Both tables are analysed and written to disk first, because a million new rows would keep the server writing
for a while. Batches are claimed in turn, with the scheduler's own code; the short backlog is created again for each
round.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from bench.figures import Figures, ratio_of_medians, rounded
from bench.messages import fill
from bench.scale import Scale
from bench.servers import BenchmarkError, BenchServers, OutboxDatabase
from outrider.storage.connection import connect
from outrider.storage.store import Store

BATCH_ROWS = 500
WARM_UP_BATCHES = 2
LEASE_SECONDS = 3600.0


def measure(servers: BenchServers, scale: Scale, figures: Figures) -> None:
    times: tuple[list[float], list[float]] = ([], [])
    with servers.outbox() as large, _filled(large, scale.claim_rows_large) as large_store:
        for number in range(scale.rounds):
            with servers.outbox() as small, _filled(small, scale.claim_rows_small) as small_store:
                small_store.connection.execute("CHECKPOINT")
                _claim_in_turn((small_store, large_store), scale.claim_rows_small // BATCH_ROWS, number, times)
    note = None
    if scale.claim_rows_large < 1_000_000:
        note = f"{scale.claim_rows_large:,} rows instead of a million"
    figures.put("claim_cost_1m_vs_10k", ratio_of_medians(times[1], times[0]), note)
    figures.raw["claim_cost"] = {
        "rows": [scale.claim_rows_small, scale.claim_rows_large],
        "microseconds_per_row_small": rounded(times[0]),
        "microseconds_per_row_large": rounded(times[1]),
    }


@contextmanager
def _filled(database: OutboxDatabase, rows: int) -> Iterator[Store]:
    with connect(database.dsn, application_name="bench") as connection:
        fill(connection, "bench", rows, transaction_rows=50_000, due_in_seconds=0, ordered=True)
        connection.execute("VACUUM (ANALYZE) outbox")
        yield Store(connection, "public")


def _claim_in_turn(
    stores: tuple[Store, Store], batches: int, round_number: int, times: tuple[list[float], list[float]]
) -> None:
    for number in range(batches):
        for store, taken in zip(stores, times, strict=True):
            seconds = _claim(store, f"bench/{round_number}/{number}")
            if number >= WARM_UP_BATCHES:
                taken.append(seconds / BATCH_ROWS * 1e6)


def _claim(store: Store, claim: str) -> float:
    started = time.perf_counter()
    messages, _ = store.claim_due(claim, batch_size=BATCH_ROWS, lease_seconds=LEASE_SECONDS)
    seconds = time.perf_counter() - started
    if len(messages) != BATCH_ROWS:
        raise BenchmarkError(f"{len(messages)} rows were claimed, not {BATCH_ROWS}")
    return seconds
