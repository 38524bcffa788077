"""`python -m bench [--quick] [--only NAME ...]`: measure, print a table and write bench/latest.json."""

from __future__ import annotations

import sys
from pathlib import Path

import click
from rich.console import Console

from bench import (
    append_rate,
    bulk_enqueue,
    claim_cost,
    decode,
    latency,
    outage,
    peer,
    peer_enqueue,
    peer_rate,
    read_cost,
    relay_memory,
    relay_rate,
    worker_rate,
)
from bench.figures import Figures
from bench.machine import describe
from bench.results_table import print_table
from bench.run import Part, run_parts
from bench.scale import FULL, QUICK
from bench.servers import BenchServers

LATEST = Path(__file__).with_name("latest.json")

PARTS = {
    part.name: part
    for part in (
        Part("relay", relay_rate.measure, ("relay_vs_broker_limit",)),
        Part("decode", decode.measure, ("decode_vs_debezium",), decode.peer_command),
        Part("latency", latency.measure, ("latency_p50_vs_direct", "latency_p99_vs_direct")),
        Part("bulk", bulk_enqueue.measure, ("bulk_enqueue_vs_insert",)),
        Part("claim", claim_cost.measure, ("claim_cost_1m_vs_10k",)),
        Part("memory", relay_memory.measure, ("relay_rss_growth_mb_1m_rows",)),
        Part("peer-enqueue", peer_enqueue.measure, ("enqueue_vs_django_celery_outbox",), peer.interpreter),
        Part(
            "peer-rate",
            peer_rate.measure,
            ("relay_vs_django_celery_outbox", "scheduler_vs_django_celery_outbox"),
            peer.interpreter,
        ),
        Part("outage", outage.measure, ("slot_retained_mb_during_outage",)),
        Part("worker", worker_rate.measure, ("worker_vs_raw_consume",)),
        Part("append", append_rate.measure, ("append_vs_eventsourcing",), append_rate.interpreter),
        Part("read", read_cost.measure, ("read_cost_10m_vs_100k",)),
    )
}

NAMES = "\n".join(f"  {part.name:<13} {', '.join(part.keys)}" for part in PARTS.values())
EPILOG = f"""
\b
Parts for --only, with their results:
{NAMES}

Both sides of a ratio are measured in turn on this machine, and their medians compared; see docs/performance.md. The
first run installs the peers into bench/venvs. A full run takes 10 to 20 minutes on two idle processors; no part takes
longer than {FULL.part_seconds / 60:g} minutes. Ctrl-C ends it and keeps the results so far.
"""


@click.command(epilog=EPILOG)
@click.option("--quick", is_flag=True, help="Smaller numbers; takes less than two minutes.")
@click.option(
    "--only",
    type=click.Choice(list(PARTS)),
    multiple=True,
    metavar="PART",
    help="Only this part; may be repeated. The results of the others are null.",
)
def main(quick: bool, only: tuple[str, ...]) -> None:
    """Compare this outbox with the limits of its servers and with its peers; write bench/latest.json."""
    scale = QUICK if quick else FULL
    console = Console()
    figures = Figures()
    with BenchServers() as servers:
        figures.raw["machine"] = describe(servers)
        figures.raw["scale"] = scale.name
        complete = run_parts((PARTS[name] for name in only or PARTS), servers, scale, figures, console, LATEST)
    print_table(console, figures, scale)
    sys.exit(0 if complete else 130)


if __name__ == "__main__":
    main()
