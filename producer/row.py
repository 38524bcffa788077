"""
Row: what the producer writes to the outbox, as the parameters of the `enqueue...` queries.

Values are text or None, whatever the column's type; `payload` is bytes. `make_row` is the only place that lists the
parameters. Nothing here checks values: Event and the Celery adapter do.
"""

from __future__ import annotations

from operator import itemgetter
from typing import Any

Row = dict[str, Any]


def make_row(
    *,
    event_id: str,
    event_type: str,
    exchange: str,
    routing_key: str,
    payload: bytes,
    content_type: str,
    content_encoding: str,
    headers: str = "{}",
    properties: str = "{}",
    declarations: str | None = None,
    context: str | None = None,
    aggregate_type: str | None = None,
    aggregate_id: str | None = None,
    ordering_key: str | None = None,
    dedup_key: str | None = None,
    expires_at: str | None = None,
    expires_in_seconds: str | None = None,
    deliver_at: str | None = None,
    deliver_in_seconds: str | None = None,
) -> Row:
    """`headers`, `properties`, `declarations` and `context` are JSON; times are ISO 8601 text."""
    return {
        "event_id": event_id,
        "event_type": event_type,
        "aggregate_type": aggregate_type,
        "aggregate_id": aggregate_id,
        "ordering_key": ordering_key,
        "exchange": exchange,
        "routing_key": routing_key,
        "payload": payload,
        "content_type": content_type,
        "content_encoding": content_encoding,
        "headers": headers,
        "properties": properties,
        "declarations": declarations,
        "context": context,
        "dedup_key": dedup_key,
        "expires_at": expires_at,
        "expires_in_seconds": expires_in_seconds,
        "deliver_at": deliver_at,
        "deliver_in_seconds": deliver_in_seconds,
    }


def is_delayed(row: Row) -> bool:
    return row["deliver_at"] is not None or row["deliver_in_seconds"] is not None


_NOT_COPIED = itemgetter("dedup_key", "expires_at", "expires_in_seconds", "deliver_at", "deliver_in_seconds")
_NOT_PLAIN = itemgetter("aggregate_type", "ordering_key", "context", "expires_at", "expires_in_seconds")
_ALL_NONE = (None,) * 5


def can_be_copied(row: Row) -> bool:
    """Whether the row holds only text and bytes, which the query `enqueue_copy` can write."""
    return bool(_NOT_COPIED(row) == _ALL_NONE)


def uuid_bytes(event_id: str) -> bytes:
    """The binary form of a UUID."""
    return bytes.fromhex(event_id.replace("-", ""))


def query_for(row: Row) -> str:
    """The cheapest query that writes this row."""
    if is_delayed(row):
        return "enqueue_delayed"
    if row["dedup_key"] is not None:
        return "enqueue_once"
    return "enqueue_plain" if _NOT_PLAIN(row) == _ALL_NONE else "enqueue"


# Columns that are never null, so that a missing value can mean "the same as in the first row".
_SENT_ONCE = ("event_type", "exchange", "routing_key", "content_type", "content_encoding", "headers", "properties")


def to_columns(rows: list[Row]) -> dict[str, Any]:
    """The parameters of `enqueue_many`: a list per column. A column with equal values is sent once, as `first_...`."""
    columns: dict[str, Any] = {name: [row[name] for row in rows] for name in rows[0]}
    for name, values in columns.items():
        first = values[0]
        if (first is None or name in _SENT_ONCE) and values.count(first) == len(values):
            columns[name] = []
    return columns | {f"first_{name}": rows[0][name] for name in _SENT_ONCE}
