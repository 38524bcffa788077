"""
relay_vs_django_celery_outbox and scheduler_vs_django_celery_outbox: messages per second, all draining the same tasks.

One task is captured by each side's own `delay()`, and its row is multiplied in SQL, each with an id of its own. Each
program is running and suspended while the rows are written; the time runs from its resumption until the table is
empty. The peer has `confirm_publish`, the only setting that is as safe, and its defaults otherwise; it drains fewer
rows, because it takes so long. Every message is then taken from the queue and its id checked.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, LiteralString

import psycopg

from bench.arrivals import take_all
from bench.broker import declare_queue, delete_queue
from bench.figures import Figures, ratio_of_medians, rounded
from bench.peer import QUEUE, Shop, peer_shop
from bench.scale import Scale
from bench.stage import Stage, wait_until
from outbox.embedded.process import ServerProcess

WARM_UP_ROWS = 200

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

Fill = Callable[[psycopg.Connection[Any], int], None]


def measure(stage: Stage, scale: Scale, figures: Figures) -> None:
    url = stage.rabbitmq.url
    rates: dict[str, list[float]] = {"relay": [], "scheduler": [], "peer": []}
    declare_queue(url, QUEUE)
    with ExitStack() as stack:
        # Two outboxes: what is due now must not be in the relay's stream, nor the other way round.
        for_relay, for_scheduler = (stack.enter_context(stage.outbox()) for _ in range(2))
        shop, peer_dsn = stack.enter_context(peer_shop(stage, "bench_peer_rate"))
        for database in (for_relay, for_scheduler):
            _keep_template(database.dsn, "outbox", Shop("ours", database.dsn, url))
        _keep_template(peer_dsn, "celery_outbox", shop)
        peer = stage.program([shop.python, "-m", "django", "celery_outbox_relay"], shop.environment)
        stack.callback(peer.end, signal.SIGTERM, 30)
        relay = stack.enter_context(stage.relay(for_relay))
        scheduler = stack.enter_context(stage.scheduler(for_scheduler))
        for rows, peer_rows, rounds in (
            (WARM_UP_ROWS, WARM_UP_ROWS, 1),
            (scale.scheduler_rows, scale.peer_rows, scale.rounds),
        ):
            rates = {name: [] for name in rates}
            for _ in range(rounds):
                rates["relay"].append(_drain(url, for_relay.dsn, "outbox", relay, rows, _fill_ours("relay", 3600)))
                rates["peer"].append(_drain(url, peer_dsn, "celery_outbox", peer, peer_rows, _fill_theirs))
                rates["scheduler"].append(
                    _drain(url, for_scheduler.dsn, "outbox", scheduler, rows, _fill_ours("scheduler", 0))
                )
    delete_queue(url, QUEUE)
    note = f"django-celery-outbox with confirm_publish and its defaults, {scale.peer_rows:,} rows"
    figures.put("relay_vs_django_celery_outbox", ratio_of_medians(rates["relay"], rates["peer"]), note)
    figures.put("scheduler_vs_django_celery_outbox", ratio_of_medians(rates["scheduler"], rates["peer"]), note)
    figures.raw["peer"] = {
        "rows": scale.scheduler_rows,
        "django_celery_outbox_rows": scale.peer_rows,
        "relay_messages_per_second": rounded(rates["relay"]),
        "scheduler_messages_per_second": rounded(rates["scheduler"]),
        "django_celery_outbox_messages_per_second": rounded(rates["peer"]),
    }


def _keep_template(dsn: str, table: LiteralString, shop: Shop) -> None:
    """Capture one task and set its row aside."""
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


def _drain(url: str, dsn: str, table: LiteralString, program: ServerProcess, rows: int, fill: Fill) -> float:
    with psycopg.connect(dsn, autocommit=True) as connection:
        program.send_signal(signal.SIGSTOP)
        try:
            fill(connection, rows)
            newest = connection.execute(f"SELECT max(id) FROM {table}").fetchone()
        finally:
            started = time.perf_counter()
            program.send_signal(signal.SIGCONT)

        def newest_is_gone() -> bool:
            return connection.execute(f"SELECT FROM {table} WHERE id = %s", newest).fetchone() is None

        def all_are_gone() -> bool:
            return connection.execute(f"SELECT FROM {table} LIMIT 1").fetchone() is None

        wait_until(newest_is_gone, program, f"{table} is not drained")
        wait_until(all_are_gone, program, f"rows are left in {table}")
    seconds = time.perf_counter() - started
    take_all(url, QUEUE, rows).check(rows)
    return rows / seconds
