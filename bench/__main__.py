"""
python -m bench [--quick] [--only NAME ...]: measure, print a table, write bench/latest.json.

A measurement that fails leaves its keys null, with the reason, and the others go on.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import click
from rich.console import Console

from bench import (
    bulk_enqueue,
    claim_cost,
    decode,
    latency,
    outage,
    peer_enqueue,
    peer_rate,
    relay_memory,
    relay_rate,
    worker_rate,
)
from bench.figures import Figures
from bench.machine import describe, load
from bench.scale import FULL, QUICK, Scale
from bench.stage import Stage
from bench.table import print_table

LATEST = Path(__file__).with_name("latest.json")

Measure = Callable[[Stage, Scale, Figures], None]

MEASUREMENTS: dict[str, tuple[Measure, tuple[str, ...]]] = {
    "relay": (relay_rate.measure, ("relay_vs_broker_limit",)),
    "decode": (decode.measure, ("decode_vs_debezium",)),
    "latency": (latency.measure, ("latency_p50_vs_direct", "latency_p99_vs_direct")),
    "bulk": (bulk_enqueue.measure, ("bulk_enqueue_vs_insert",)),
    "claim": (claim_cost.measure, ("claim_cost_1m_vs_10k",)),
    "memory": (relay_memory.measure, ("relay_rss_growth_mb_1m_rows",)),
    "peer-enqueue": (peer_enqueue.measure, ("enqueue_vs_django_celery_outbox",)),
    "peer-rate": (peer_rate.measure, ("relay_vs_django_celery_outbox", "scheduler_vs_django_celery_outbox")),
    "outage": (outage.measure, ("slot_retained_mb_during_outage",)),
    "worker": (worker_rate.measure, ("worker_vs_raw_consume",)),
}


@click.command()
@click.option("--quick", is_flag=True, help="smaller numbers, within two minutes")
@click.option("--only", type=click.Choice(list(MEASUREMENTS)), multiple=True, help="some of the measurements")
def main(quick: bool, only: tuple[str, ...]) -> None:
    """Measure this outbox beside the limits of its servers and beside its peers."""
    scale = QUICK if quick else FULL
    console = Console()
    figures = Figures()
    with Stage() as stage:
        figures.raw["machine"] = describe(stage)
        figures.raw["scale"] = scale.name
        for name in only or MEASUREMENTS:
            measure, keys = MEASUREMENTS[name]
            started = time.monotonic()
            try:
                measure(stage, scale, figures)
            except Exception as error:
                console.print_exception(max_frames=4)
                for key in keys:
                    figures.missing(key, f"failed: {error}".partition("\n")[0])
            console.print(f"{name}: {time.monotonic() - started:.0f} s", style="dim")
            figures.raw["machine"]["load_at_end"] = load()
            figures.write(LATEST)  # after each: a run that is interrupted leaves what it has
    print_table(console, figures, scale)


if __name__ == "__main__":
    main()
