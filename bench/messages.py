"""
The messages of the benchmarks: an ordinary event, the same on every path.

A JSON body of 150 bytes, a few headers, persistent. The event id contains the number of the message, so that a consumer
can identify messages by the message_id alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final
from uuid import UUID

import psycopg

BODY_BYTES: Final = 150
EVENT_TYPE: Final = "order.placed"
HEADERS: Final = {
    "aggregate_type": "order",
    "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    "tenant": "north-7",
    "source": "shop-checkout",
}
MESSAGE_ID: Final = re.compile(rb"be9c0000-0000-4000-8000-(\d{12})")

TRANSACTION_ROWS: Final = 100

_FILL: Final = """
    INSERT INTO outbox (event_id, event_type, aggregate_type, aggregate_id, ordering_key, routing_key, payload, headers,
                        next_attempt_at, owner)
    SELECT ('be9c0000-0000-4000-8000-' || lpad(n::text, 12, '0'))::uuid, %(event_type)s, 'order', n::text,
           CASE WHEN %(ordered)s THEN 'order:' || n END, %(routing_key)s,
           convert_to(replace(%(body)s, '000000000000', lpad(n::text, 12, '0')), 'UTF8'), %(headers)s::json,
           clock_timestamp() + %(due_in_seconds)s * interval '1 second',
           CASE WHEN %(due_in_seconds)s > 0 THEN 'relay' ELSE 'scheduler' END
      FROM generate_series(%(first)s::bigint, %(last)s::bigint) AS n"""


def body(number: int) -> bytes:
    order = {"order": f"{number:012d}", "customer": "c-20817", "currency": "EUR", "total": "149.90", "note": ""}
    order["note"] = "x" * (BODY_BYTES - len(json.dumps(order)))
    return json.dumps(order).encode()


def event_id(number: int) -> UUID:
    return UUID(f"be9c0000-0000-4000-8000-{number:012d}")


def fill(
    connection: psycopg.Connection[Any],
    queue: str,
    rows: int,
    *,
    first: int = 0,
    transaction_rows: int = TRANSACTION_ROWS,
    due_in_seconds: float = 3600,
    ordered: bool = False,
) -> None:
    """Commit `rows` rows in transactions of `transaction_rows`. Rows that are due now belong to the scheduler."""
    for start, end in _slices(first, first + rows, transaction_rows):
        connection.execute(
            _FILL,
            {
                "event_type": EVENT_TYPE,
                "ordered": ordered,
                "routing_key": queue,
                "body": body(0).decode(),
                "headers": json.dumps(HEADERS),
                "due_in_seconds": due_in_seconds,
                "first": start,
                "last": end - 1,
            },
        )


def _slices(first: int, end: int, size: int) -> Iterator[tuple[int, int]]:
    for start in range(first, end, size):
        yield start, min(end, start + size)
