"""
relay_vs_django_celery_outbox and scheduler_vs_django_celery_outbox: messages per second, all draining the same tasks.

Each side's own `delay()` captures one task, and its row is multiplied in SQL, each copy with its own id. The peer runs
with `confirm_publish`, the only setting that is equally safe, and otherwise with its defaults; it drains fewer rows
because it is slow. All drain in the same way (bench.backlog), into the same queue, with a consumer that takes messages
as they arrive.

Without a consumer, the figure would describe the broker: RabbitMQ before 3.12 keeps the messages of a classic queue,
decoded, in the memory of the one process that writes them, and spends most of its time on the garbage collection of
that process (docs/performance.md). That rate is under `raw`, as `unconsumed`.
"""

from __future__ import annotations

import signal
from contextlib import ExitStack
from typing import Any, LiteralString

import psycopg

from bench.backlog import Backlog, Fill
from bench.broker import delete_queue
from bench.figures import Figures, ratio_of_medians, rounded
from bench.peer import QUEUE, Shop, peer_shop
from bench.scale import Scale
from bench.servers import BenchServers

WARM_UP_SHARE = 0.1
SLEEP_SECONDS = 1.0
"""Default polling interval of the peer's relay and of our scheduler."""

NEW_ID: LiteralString = "'be9c0000-0000-4000-8000-' || lpad(n::text, 12, '0')"
MULTIPLY_OURS: LiteralString = f"""
    INSERT INTO outbox (event_id, event_type, exchange, routing_key, payload, content_type, content_encoding, headers,
                        properties, declarations, owner, next_attempt_at)
    SELECT ({NEW_ID})::uuid, event_type, exchange, routing_key, payload, content_type, content_encoding,
           replace(headers::text, event_id::text, {NEW_ID})::json,
           replace(properties::text, event_id::text, {NEW_ID})::json, declarations, %(owner)s,
           clock_timestamp() + %(due_in_seconds)s * interval '1 second'
      FROM template, generate_series(0, %(rows)s - 1) AS n"""
MULTIPLY_THEIRS: LiteralString = f"""
    INSERT INTO celery_outbox (created_at, retries, task_id, task_name, args, kwargs, options, schema_version,
                               sentry_trace_id, sentry_baggage, structlog_context)
    SELECT now(), 0, {NEW_ID}, task_name, args, kwargs, options, schema_version, sentry_trace_id, sentry_baggage,
           structlog_context
      FROM template, generate_series(0, %(rows)s - 1) AS n"""


def measure(servers: BenchServers, scale: Scale, figures: Figures) -> None:
    url = servers.rabbitmq.url
    rates: dict[str, list[float]] = {"relay": [], "scheduler": [], "peer": []}
    unconsumed: dict[str, list[float]] = {"relay": [], "peer": []}
    with ExitStack() as stack:
        # Two databases: the scheduler's rows must not be in the relay's stream, and the other way round.
        for_relay, for_scheduler = (stack.enter_context(servers.outbox()) for _ in range(2))
        shop, peer_dsn = stack.enter_context(peer_shop(servers, "bench_peer_rate"))
        for database in (for_relay, for_scheduler):
            _create_template(database.dsn, "outbox", Shop("ours", database.dsn, url))
        _create_template(peer_dsn, "celery_outbox", shop)
        peer = servers.program([shop.python, "-m", "django", "celery_outbox_relay"], shop.environment)
        stack.callback(peer.end, signal.SIGTERM, 30)
        relay = stack.enter_context(servers.relay(for_relay))
        scheduler = stack.enter_context(servers.scheduler(for_scheduler))
        backlogs = {
            "relay": Backlog(for_relay.dsn, "outbox", relay, url, QUEUE, _fill_ours("relay", 3600)),
            "peer": Backlog(peer_dsn, "celery_outbox", peer, url, QUEUE, _fill_theirs, SLEEP_SECONDS),
            "scheduler": Backlog(
                for_scheduler.dsn, "outbox", scheduler, url, QUEUE, _fill_ours("scheduler", 0), SLEEP_SECONDS
            ),
        }
        rows = {name: scale.peer_rows if name == "peer" else scale.scheduler_rows for name in backlogs}
        for name, backlog in backlogs.items():
            backlog.drain(round(rows[name] * WARM_UP_SHARE), consumed=True)
        for _ in range(scale.peer_rounds):
            for name, backlog in backlogs.items():
                rates[name].append(backlog.drain(rows[name], consumed=True))
        for _ in range(scale.peer_rounds_unconsumed):
            for name, measured in unconsumed.items():
                measured.append(backlogs[name].drain(rows[name]))
    delete_queue(url, QUEUE)
    note = f"peer with confirm_publish and defaults, {scale.peer_rows:,} rows; all with a consumer at the queue"
    figures.put("relay_vs_django_celery_outbox", ratio_of_medians(rates["relay"], rates["peer"]), note)
    figures.put("scheduler_vs_django_celery_outbox", ratio_of_medians(rates["scheduler"], rates["peer"]), note)
    figures.raw["peer"] = {
        "rows": scale.scheduler_rows,
        "django_celery_outbox_rows": scale.peer_rows,
        "relay_messages_per_second": rounded(rates["relay"]),
        "scheduler_messages_per_second": rounded(rates["scheduler"]),
        "django_celery_outbox_messages_per_second": rounded(rates["peer"]),
        "unconsumed": {
            "ratio": round(ratio_of_medians(unconsumed["relay"], unconsumed["peer"]), 2),
            "relay_messages_per_second": rounded(unconsumed["relay"]),
            "django_celery_outbox_messages_per_second": rounded(unconsumed["peer"]),
        },
    }


def _create_template(dsn: str, table: LiteralString, shop: Shop) -> None:
    """Capture one task and copy its row to the table template."""
    shop.enqueue(0)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f"CREATE TABLE template AS SELECT * FROM {table}")
        connection.execute(f"TRUNCATE {table}")


def _fill_ours(owner: str, due_in_seconds: float) -> Fill:
    def fill(connection: psycopg.Connection[Any], rows: int) -> None:
        connection.execute(MULTIPLY_OURS, {"rows": rows, "owner": owner, "due_in_seconds": due_in_seconds})

    return fill


def _fill_theirs(connection: psycopg.Connection[Any], rows: int) -> None:
    connection.execute(MULTIPLY_THEIRS, {"rows": rows})
