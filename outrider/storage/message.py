"""
Message: one row of the outbox, as the relay reads it from the WAL and the scheduler from the table.

A NamedTuple rather than a dataclass because the relay builds one for every row it reads: it costs a fifth of a frozen
dataclass. The fields are in the order of the `message_columns` fragment of sql/queries.sql; a test keeps them in step.

JSON columns stay text until they are needed, and are parsed once, by the publisher. Instants are integers:
microseconds since 2000-01-01 UTC, PostgreSQL's own epoch and the unit in which every replication message carries the
server's clock, so that comparing the two needs no conversion.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import NamedTuple

SCHEMA_VERSION = 1
"""The newest row format that this code understands; rows of a newer one are left to newer services."""

POSTGRES_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)


class Message(NamedTuple):
    """One message on its way: what goes on the wire, and what decides when and by whom it is sent."""

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
    headers: str | bytes
    """JSON object: the AMQP headers."""
    properties: str | bytes
    """JSON object: AMQP basic properties by their kombu names; `expiration` in seconds."""
    declarations: str | bytes | None
    """JSON array of queues to declare before the send, or None."""
    context: str | bytes | None
    """JSON object bound to the services' logs around the send, or None."""
    created_at: int
    expires_at: int | None
    next_attempt_at: int
    attempts: int
    owner: str
    """'relay' until the first failure, hand-over or claim; then 'scheduler', for good."""

    @property
    def size(self) -> int:
        """Bytes that count against a window: what the row holds in memory, near enough."""
        return len(self.payload) + len(self.headers) + 256

    def describe(self) -> dict[str, object]:
        """What logs may say of a message: never its payload or its headers."""
        return {"id": self.id, "event_id": self.event_id, "event_type": self.event_type}


def instant(moment: datetime) -> int:
    """Microseconds since PostgreSQL's epoch."""
    return (moment - POSTGRES_EPOCH) // timedelta(microseconds=1)


def moment(instant_microseconds: int) -> datetime:
    """The inverse of `instant`."""
    return POSTGRES_EPOCH + timedelta(microseconds=instant_microseconds)
