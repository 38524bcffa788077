"""
SQLAlchemy: the outbox's tables as metadata.

    from outrider.producer.sqlalchemy import outbox_tables

    tables = outbox_tables(Base.metadata)           # tables.outbox, tables.outbox_dead_letter, ...

With the tables in the metadata, Alembic's autogenerate does not drop them, and queries can be written against them.
Create them with migrations (outrider.producer.alembic or `outrider setup`), not with `create_all`: constraints, storage
parameters and most indexes are only in sql/. A test compares every column with the database.

Publishing does not need this module: a Session is a handle.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from sqlalchemy import BigInteger, Column, DateTime, Integer, LargeBinary, MetaData, SmallInteger, Table, Text, Uuid
from sqlalchemy.dialects.postgresql import JSON
from sqlalchemy.types import TypeEngine

_BIGINT, _INT, _SMALLINT, _TEXT = BigInteger(), Integer(), SmallInteger(), Text()
_BYTES, _JSON, _INSTANT, _UUID = LargeBinary(), JSON(), DateTime(timezone=True), Uuid()

Types = dict[str, TypeEngine[Any]]

# The common columns of outbox, dead letters and archive: the id and `moved_columns` of sql/queries/fragments.sql.
_MESSAGE: Types = {
    "id": _BIGINT,
    "event_id": _UUID,
    "schema_version": _SMALLINT,
    "event_type": _TEXT,
    "aggregate_type": _TEXT,
    "aggregate_id": _TEXT,
    "ordering_key": _TEXT,
    "exchange": _TEXT,
    "routing_key": _TEXT,
    "payload": _BYTES,
    "content_type": _TEXT,
    "content_encoding": _TEXT,
    "headers": _JSON,
    "properties": _JSON,
    "declarations": _JSON,
    "context": _JSON,
}
_FAILURE: Types = {"attempts": _INT, "last_error": _TEXT, "last_failed_at": _INSTANT}

_TABLES: dict[str, Types] = {
    "outbox": {
        **_MESSAGE,
        "dedup_key": _TEXT,
        "created_at": _INSTANT,
        "expires_at": _INSTANT,
        "next_attempt_at": _INSTANT,
        "attempts": _INT,
        "owner": _TEXT,
        "claimed_by": _TEXT,
        "last_error": _TEXT,
        "last_failed_at": _INSTANT,
    },
    "outbox_dead_letter": {
        **_MESSAGE,
        "dedup_key": _TEXT,
        "created_at": _INSTANT,
        "expires_at": _INSTANT,
        **_FAILURE,
        "reason": _TEXT,
        "died_at": _INSTANT,
    },
    "outbox_archive": {**_MESSAGE, "created_at": _INSTANT, "attempts": _INT, "delivered_at": _INSTANT},
    "outbox_event": {
        "stream": _TEXT,
        "version": _BIGINT,
        "event_id": _UUID,
        "event_type": _TEXT,
        "payload": _BYTES,
        "content_type": _TEXT,
        "content_encoding": _TEXT,
        "headers": _JSON,
        "created_at": _INSTANT,
    },
    "outbox_inbox": {"consumer": _TEXT, "event_id": _TEXT, "processed_at": _INSTANT},
    "outbox_worker": {
        "kind": _TEXT,
        "name": _TEXT,
        "role": _TEXT,
        "version": _TEXT,
        "host": _TEXT,
        "pid": _INT,
        "started_at": _INSTANT,
        "last_seen_at": _INSTANT,
    },
    "outbox_migration": {"version": _INT, "name": _TEXT, "applied_at": _INSTANT},
}
_PRIMARY_KEYS = {
    "outbox_event": ("stream", "version"),
    "outbox_inbox": ("consumer", "event_id"),
    "outbox_worker": ("kind", "name"),
    "outbox_migration": ("version",),
}
_NULLABLE = frozenset(
    (
        *("aggregate_type", "aggregate_id", "ordering_key", "declarations", "context", "dedup_key", "expires_at"),
        *("claimed_by", "last_error", "last_failed_at"),
    )
)


class OutboxTables(NamedTuple):
    outbox: Table
    outbox_dead_letter: Table
    outbox_archive: Table
    outbox_event: Table
    outbox_inbox: Table
    outbox_worker: Table
    outbox_migration: Table


def outbox_tables(metadata: MetaData, *, schema: str | None = None) -> OutboxTables:
    """Add the tables to the metadata. `schema` None leaves the schema to the search path, as in SQLAlchemy."""
    return OutboxTables(**{name: _table(name, metadata, schema) for name in _TABLES})


def _table(name: str, metadata: MetaData, schema: str | None) -> Table:
    primary_key = _PRIMARY_KEYS.get(name, ("id",))
    columns = [
        Column(column, kind, primary_key=column in primary_key, nullable=column in _NULLABLE, autoincrement=False)
        for column, kind in _TABLES[name].items()
    ]
    return Table(name, metadata, *columns, schema=schema)
