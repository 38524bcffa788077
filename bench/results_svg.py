"""
Draw the results as SVG: `python -m bench.results_svg [latest.json] [out.svg]`

One bar per result. Its length is how many times as good as wanted the result is: a bar that reaches the line is as
wanted, a longer one is better, both for results where more is better and where less is better. A bar that is too long
is cut off and marked. A missing result shows its reason instead of a bar. Machine, versions and time are below.

The file has no fonts, scripts or links, and follows the reader's light or dark setting.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeGuard
from xml.sax.saxutils import escape

import click

from bench.figures import WANTED

LATEST: Final = Path(__file__).with_name("latest.json")
SVG_FILE: Final = Path(__file__).parents[1] / "docs" / "images" / "benchmarks.svg"

LABELS: Final = {
    "relay_vs_broker_limit": "relay, over the broker's limit",
    "relay_vs_django_celery_outbox": "relay, over django-celery-outbox",
    "decode_vs_debezium": "reading the WAL, over Debezium",
    "latency_p50_vs_direct": "latency p50, over a direct publish",
    "latency_p99_vs_direct": "latency p99, over a direct publish",
    "enqueue_vs_django_celery_outbox": "delay(), over django-celery-outbox",
    "bulk_enqueue_vs_insert": "publish_many, over plain INSERT or COPY",
    "scheduler_vs_django_celery_outbox": "scheduler, over django-celery-outbox",
    "claim_cost_1m_vs_10k": "claim with 1,000,000 rows, over 10,000",
    "relay_rss_growth_mb_1m_rows": "memory for a commit of 1,000,000 rows",
    "slot_retained_mb_during_outage": "WAL retained in a broker outage of 60 s",
    "worker_vs_raw_consume": "worker, over a plain consumer",
    "append_vs_eventsourcing": "append of events, over eventsourcing",
    "read_cost_10m_vs_100k": "reading 10,000,000 events, over 100,000",
}

WIDTH: Final = 920
BARS_FROM: Final = 310
UNIT: Final = 160
"""Length in pixels of a bar that is exactly as wanted."""
LONGEST: Final = 2.75
"""Longest bar, in times as good as wanted."""
FIGURES_FROM: Final = BARS_FROM + int(UNIT * LONGEST) + 12
ROW: Final = 28
TOP: Final = 84
REASON_CHARACTERS: Final = 72

STYLE: Final = """
  .page { fill: #ffffff } .text { fill: #1f2328 } .quiet { fill: #59636e } .line { stroke: #59636e }
  .good { fill: #1a7f64 } .short { fill: #c4601d }
  @media (prefers-color-scheme: dark) {
    .page { fill: #0d1117 } .text { fill: #e6edf3 } .quiet { fill: #9198a1 } .line { stroke: #9198a1 }
    .good { fill: #3fb68b } .short { fill: #e08a4a }
  }
  text { font: 13px system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif }
  .title { font-size: 17px; font-weight: 600 } .small { font-size: 12px } .figure { font-weight: 600 }
"""


def render_svg(results: Mapping[str, Any]) -> str:
    """The results of a run, as in bench/latest.json, as an SVG document."""
    footer = list(_footer(results))
    bottom = TOP + ROW * len(WANTED)
    height = bottom + 18 + 18 * len(footer)
    line = BARS_FROM + UNIT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
        ' role="img" aria-labelledby="title">',
        '<title id="title">Benchmarks of Outrider, each relative to what is wanted</title>',
        f"<style>{STYLE}</style>",
        f'<rect class="page" width="{WIDTH}" height="{height}" rx="6"/>',
        _text(24, 32, "Compared with the limits of its servers and with its peers", "text title"),
        _text(24, 52, "How many times as good as wanted: a bar that reaches the line is as wanted.", "quiet small"),
        _text(line, TOP - 10, "wanted", "quiet small", anchor="middle"),
        *(row for number, key in enumerate(WANTED) for row in _row(results, key, TOP + ROW * number)),
        f'<line class="line" x1="{line}" x2="{line}" y1="{TOP - 4}" y2="{bottom}" stroke-dasharray="3 3"/>',
        *(_text(24, bottom + 24 + 18 * number, text, "quiet small") for number, text in enumerate(footer)),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def times_as_good(key: str, value: float) -> float:
    """1 means exactly as wanted. Growth of 0 or less is infinitely good."""
    relation, limit = WANTED[key]
    if relation == ">=":
        return max(0.0, value / limit)
    return limit / value if value > 0 else math.inf


def _row(results: Mapping[str, Any], key: str, top: int) -> Iterator[str]:
    baseline = top + 18
    relation, limit = WANTED[key]
    note = str(results.get("notes", {}).get(key, ""))
    value = results.get(key)
    yield f"<g><title>{escape(f'{key}: {note}' if note else key)}</title>"
    yield _text(BARS_FROM - 10, baseline, LABELS.get(key, key), "text", anchor="end")
    if not _is_figure(value):
        yield _text(BARS_FROM + 4, baseline, _shortened(f"not measured: {note or 'no reason given'}"), "quiet small")
    else:
        good = times_as_good(key, value)
        width = max(1, round(UNIT * min(good, LONGEST)))
        kind = "good" if good >= 1 else "short"
        yield f'<rect class="{kind}" x="{BARS_FROM}" y="{top + 5}" width="{width}" height="{ROW - 10}" rx="2"/>'
        if good > LONGEST:
            yield _text(BARS_FROM + width - 6, baseline - 1, "»", "page figure", anchor="end")
        sign = "≥" if relation == ">=" else "≤"
        unit = " MB" if "_mb_" in key else ""
        yield (
            f'<text x="{FIGURES_FROM}" y="{baseline}"><tspan class="text figure">{_figure(value)}{unit}</tspan>'
            f'<tspan class="quiet small" dx="8">{sign} {_figure(limit)}</tspan></text>'
        )
    yield "</g>"


def _footer(results: Mapping[str, Any]) -> Iterator[str]:
    raw = results.get("raw", {})
    machine = raw.get("machine", {})
    yield ", ".join(
        str(part)
        for part in (
            f"{machine.get('processors', '?')} x {machine.get('processor', 'unknown processor')}",
            machine.get("system", "unknown system"),
        )
    )
    names = {"outrider": "Outrider", "postgresql": "PostgreSQL", "rabbitmq": "RabbitMQ", "python": "Python"}
    versions = [f"{name} {machine[key]}" for key, name in names.items() if key in machine]
    if java := raw.get("decode", {}).get("java"):
        versions.append(f"Java {java}")
    yield ", ".join(versions) or "versions unknown"
    when = str(machine.get("measured_at", "at an unknown time")).replace("T", " ").replace("+00:00", " UTC")
    quick = ", smaller numbers than the names say" if raw.get("scale") == "quick" else ""
    yield f"{when}, {raw.get('scale', 'unknown')} run{quick}, load at start {machine.get('load_at_start', '?')}"


def _text(x: int, y: int, text: str, kind: str, *, anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x}" y="{y}" text-anchor="{anchor}">{escape(text)}</text>'


def _is_figure(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _figure(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _shortened(text: str) -> str:
    return text if len(text) <= REASON_CHARACTERS else f"{text[: REASON_CHARACTERS - 1].rstrip()}…"


@click.command()
@click.argument("results", type=click.Path(path_type=Path), default=LATEST)
@click.argument("out", type=click.Path(path_type=Path), default=SVG_FILE)
def main(results: Path, out: Path) -> None:
    """Draw RESULTS (default: bench/latest.json) as an SVG into OUT (default: docs/images/benchmarks.svg)."""
    try:
        given = json.loads(results.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise click.ClickException(f"cannot read results from {results}: {error}; `make bench` writes them") from error
    if not isinstance(given, dict):
        raise click.ClickException(f"{results} has no results; `make bench` writes them")
    out.write_text(render_svg(given), encoding="utf-8")
    click.echo(f"wrote {out}")


if __name__ == "__main__":
    main()
