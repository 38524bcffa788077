"""
Message: one row of the outbox, as the relay reads it from the WAL and the scheduler from the table.

A NamedTuple, because the relay builds one for every row: a frozen dataclass takes five times as long. The fields are in
the order of the fragment `message_columns` in sql/queries/fragments.sql; a test compares the two.

JSON columns stay text; the publisher parses them. Times are server times (see server_time.py), the unit in which every
replication message carries the server's clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

SCHEMA_VERSION = 1
OLDEST_SCHEMA_VERSION = 1
"""
The newest and the oldest row format that this code understands. Other rows are not sent: they wait for a service that
understands them. In SQL: the fragment `supported_version`.
"""


DEFAULT_EXCHANGE = "amq.topic"
"""Where events are published, and where consumers listen, unless they say otherwise: every RabbitMQ has it."""


class Message(NamedTuple):
    id: int
    event_id: str
    schema_version: int
    event_type: str
    aggregate_type: str | None
    aggregate_id: str | None
    ordering_key: str | None
    exchange: str
    routing_key: str
    payload: bytes
    content_type: str
    content_encoding: str
    headers: str
    """JSON object: the AMQP headers."""
    properties: str
    """JSON object: AMQP basic properties by their kombu names; `expiration` in seconds."""
    declarations: str | None
    """JSON array of queues to declare before the send, or None."""
    context: str | None
    """JSON object bound to the services' logs around the send, or None."""
    created_at: int
    expires_at: int | None
    next_attempt_at: int
    attempts: int
    owner: str
    """'relay' until the first failure, hand-over or claim; from then on 'scheduler'."""

    @property
    def size(self) -> int:
        """Bytes that count against a window or batch: about what the message takes in memory. In SQL: message_bytes."""
        texts = len(self.headers) + len(self.properties) + len(self.declarations or "") + len(self.context or "")
        return len(self.payload) + texts + 256

    def describe(self) -> dict[str, object]:
        """The fields that logs may contain: not the payload, not the headers."""
        return {"id": self.id, "event_id": self.event_id, "event_type": self.event_type}


COLUMN_DEFAULTS: Mapping[str, int | str | None] = MappingProxyType(
    {
        "schema_version": 1,
        "aggregate_type": None,
        "aggregate_id": None,
        "ordering_key": None,
        "exchange": "",
        "content_type": "application/json",
        "content_encoding": "utf-8",
        "headers": "{}",
        "properties": "{}",
        "declarations": None,
        "context": None,
        "expires_at": None,
        "attempts": 0,
        "owner": "relay",
    }
)
"""
The value of a column in rows that were written before the table had it, as ADD COLUMN gives it to them: its default in
sql/schema.sql, or null. The other columns have no such value. A test compares this with the schema.
"""
