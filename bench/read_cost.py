"""
read_cost_10m_vs_100k: time per event to read the log in pages, in a log of ten million events over one of 100,000.

Pages of 500 from positions in the middle, of the whole log and of one category, in turn on both logs, with
EventStreams.read; decoded, not only fetched. The events are written by one INSERT, in streams of ten events.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import psycopg

from bench.figures import Figures, ratio_of_medians, rounded
from bench.scale import Scale
from bench.servers import BenchmarkError, BenchServers
from outrider.producer import EventStreams, Outbox, Position
from outrider.storage.sql_files import script

PAGE: Final = 500
WARM_UP_PAGES: Final = 4
STREAMS: Final = EventStreams(Outbox(context=None))

FILL: Final = """
INSERT INTO outbox_event (stream, version, event_id, event_type, payload)
SELECT CASE WHEN n / 10 %% 4 = 0 THEN 'account:' ELSE 'order:' END || n / 10, n %% 10 + 1, gen_random_uuid(),
       'order.placed', convert_to('{"order": ' || n || ', "lines": [{"sku": "abc", "count": 1}]}', 'UTF8')
  FROM generate_series(%(first)s::bigint, %(last)s::bigint) AS n
"""
FILL_ROWS: Final = 500_000


def measure(servers: BenchServers, scale: Scale, figures: Figures) -> None:
    times: dict[str, tuple[list[float], list[float]]] = {kind: ([], []) for kind in ("all", "category")}
    with _filled(servers, scale.read_events_small) as small, _filled(servers, scale.read_events_large) as large:
        for kind, category in (("all", None), ("category", "account")):
            for number in range(WARM_UP_PAGES + scale.read_pages):
                for log, taken in zip((small, large), times[kind], strict=True):
                    seconds = _read_page(log, category, number)
                    if number >= WARM_UP_PAGES:
                        taken.append(seconds / PAGE * 1e6)
    ratios = {kind: ratio_of_medians(both[1], both[0]) for kind, both in times.items()}
    note = ", ".join(f"{ratio:.2f} for {kind}" for kind, ratio in ratios.items())
    if scale.read_events_large < 10_000_000:
        note += f"; {scale.read_events_large:,} events instead of ten million"
    figures.put("read_cost_10m_vs_100k", max(ratios.values()), note)
    figures.raw["read_cost"] = {
        f"microseconds_per_event_{kind}_{size}": rounded(values, 2)
        for kind, both in times.items()
        for size, values in zip(("small", "large"), both, strict=True)
    }


@dataclass(frozen=True)
class Log:
    connection: psycopg.Connection[Any]
    places: list[Position]
    """Where pages begin: a few places from the first tenth to the last."""


@contextmanager
def _filled(servers: BenchServers, events: int) -> Iterator[Log]:
    # Without a slot, which would retain the WAL of ten million events.
    with servers.database(f"log_{events}") as dsn, psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(script("schema.sql", schema="public"))
        for first in range(0, events, FILL_ROWS):
            connection.execute(FILL, {"first": first, "last": min(first + FILL_ROWS, events) - 1})
        connection.execute("VACUUM (ANALYZE) outbox_event")
        connection.execute("CHECKPOINT")
        places = connection.execute(
            "SELECT epoch, transaction_id, position FROM outbox_event WHERE position = ANY(%s) ORDER BY position",
            [[events * tenth // 10 for tenth in range(1, 9)]],
        ).fetchall()
        yield Log(connection, [Position(*place) for place in places])


def _read_page(log: Log, category: str | None, number: int) -> float:
    """Seconds for one page, from another place of the log each time."""
    after = log.places[number % len(log.places)]
    started = time.perf_counter()
    page = STREAMS.read(log.connection, after=after, category=category, limit=PAGE)
    decoded = [event.data for event in page]
    seconds = time.perf_counter() - started
    if len(decoded) != PAGE:
        raise BenchmarkError(f"{len(decoded)} events were read, not {PAGE}")
    return seconds
