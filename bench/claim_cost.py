"""
claim_cost_1m_vs_10k: time per claimed row with a long backlog, over that with a short one.

Every row is due, has a key of its own (so that the claim looks for the head of each) and none is delivered. Both tables
are analysed first. Batches are claimed in turn, by the scheduler's own code.
"""

from __future__ import annotations

import time

from bench.figures import Figures, ratio_of_medians, rounded
from bench.scale import Scale
from bench.stage import BenchmarkError, OutboxDatabase, Stage
from bench.traffic import fill
from outbox.store import Store, connect

BATCH_ROWS = 500
WARM_UP_BATCHES = 2
LEASE_SECONDS = 3600.0


def measure(stage: Stage, scale: Scale, figures: Figures) -> None:
    with stage.outbox() as small, stage.outbox() as large:
        small_store = _filled(small, scale.claim_rows_small)
        large_store = _filled(large, scale.claim_rows_large)
        batches = scale.claim_rows_small // BATCH_ROWS
        times: tuple[list[float], list[float]] = ([], [])
        for number in range(batches):
            for store, taken in zip((small_store, large_store), times, strict=True):
                seconds = _claim(store, f"bench/{number}")
                if number >= WARM_UP_BATCHES:
                    taken.append(seconds / BATCH_ROWS * 1e6)
        small_store.connection.close()
        large_store.connection.close()
    note = None
    if scale.claim_rows_large < 1_000_000:
        note = f"{scale.claim_rows_large:,} rows instead of a million"
    figures.put("claim_cost_1m_vs_10k", ratio_of_medians(times[1], times[0]), note)
    figures.raw["claim_cost"] = {
        "rows": [scale.claim_rows_small, scale.claim_rows_large],
        "microseconds_per_row_small": rounded(times[0]),
        "microseconds_per_row_large": rounded(times[1]),
    }


def _filled(database: OutboxDatabase, rows: int) -> Store:
    connection = connect(database.dsn, application_name="bench")
    fill(connection, "bench", rows, transaction_rows=50_000, due_in_seconds=0, ordered=True)
    connection.execute("VACUUM (ANALYZE) outbox")
    return Store(connection, "public")


def _claim(store: Store, claim: str) -> float:
    started = time.perf_counter()
    messages, _ = store.claim_due(claim, batch_size=BATCH_ROWS, lease_seconds=LEASE_SECONDS)
    seconds = time.perf_counter() - started
    if len(messages) != BATCH_ROWS:
        raise BenchmarkError(f"{len(messages)} rows were claimed, not {BATCH_ROWS}")
    return seconds
