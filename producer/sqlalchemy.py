"""
SQLAlchemy: the outbox's tables as metadata, and their creation by the application.

    from outrider.producer.sqlalchemy import ensure_outbox, outbox_tables

    tables = outbox_tables(Base.metadata)           # tables.outbox, tables.outbox_dead_letter, ...

    with engine.begin() as connection:              # at the application's start
        ensure_outbox(connection)

`outbox_tables` describes the whole schema: columns with their defaults, constraints, indexes and storage parameters. A
test compares what `create_all` makes of it with what the migrations make. So Alembic's autogenerate finds no
difference, and `create_all` creates a complete outbox. SQLAlchemy 2.0 cannot create storage parameters, 2.1 can.

`ensure_outbox` runs the migrations that the database does not have yet. Neither creates the publication and the slot:
`outrider setup` does. Publishing does not need this module: a Session is a handle.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Connection,
    DateTime,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    SmallInteger,
    Table,
    Text,
    TextClause,
    Uuid,
    column,
    event,
    func,
    literal,
    select,
    text,
)
from sqlalchemy.dialects.postgresql import JSON
from sqlalchemy.dialects.postgresql.base import PGDialect
from sqlalchemy.schema import SchemaItem, conv
from sqlalchemy.types import TypeEngine

from outrider.producer.sqlalchemy_migrations import ensure_outbox, ensure_outbox_async
from outrider.storage.sql_files import migrations

__all__ = ["OUTBOX_TABLE", "OutboxTables", "ensure_outbox", "ensure_outbox_async", "outbox_tables"]

OUTBOX_TABLE = "outrider"
"""The key in `Table.info` that marks a table of the outbox."""

_BIGINT, _INT, _SMALLINT, _TEXT = BigInteger(), Integer(), SmallInteger(), Text()
_BYTES, _JSON, _INSTANT, _UUID = LargeBinary(), JSON(), DateTime(timezone=True), Uuid()

# Defaults are spelled as PostgreSQL shows them: Alembic compares the texts.
_NOW = "clock_timestamp()"
_IN_30_SECONDS = "(clock_timestamp() + '00:00:30'::interval)"
_EMPTY_OBJECT = "'{}'::json"


def _column(
    name: str, kind: TypeEngine[Any], default: str | None = None, *constraints: SchemaItem, null: bool = False
) -> Column[Any]:
    # Without `autoincrement`, SQLAlchemy would make an integer key a serial.
    options: dict[str, Any] = {} if constraints else {"autoincrement": False}
    server_default = None if default is None else text(default)
    return Column(name, kind, *constraints, nullable=null, server_default=server_default, **options)


def _optional(name: str, kind: TypeEngine[Any]) -> Column[Any]:
    return _column(name, kind, null=True)


# The names are final: a naming convention of the application's metadata does not change them.
def _check(name: str, condition: str) -> CheckConstraint:
    return CheckConstraint(condition, name=conv(name))


def _key(table: str, *columns: str) -> PrimaryKeyConstraint:
    return PrimaryKeyConstraint(*columns, name=conv(f"{table}_pkey"))


def _index(name: str, *columns: str | TextClause, where: str | None = None, unique: bool = False) -> Index:
    return Index(conv(name), *columns, unique=unique, postgresql_where=None if where is None else text(where))


def _message(*identity: Identity, defaults: bool = False) -> list[Column[Any]]:
    """The common columns of outbox, dead letters and archive: the id and most of `moved_columns` in fragments.sql."""

    def default(given: str) -> str | None:
        return given if defaults else None

    return [
        _column("id", _BIGINT, None, *identity),
        _column("event_id", _UUID, default("gen_random_uuid()")),
        _column("schema_version", _SMALLINT, default("1")),
        _column("event_type", _TEXT),
        _optional("aggregate_type", _TEXT),
        _optional("aggregate_id", _TEXT),
        _optional("ordering_key", _TEXT),
        _column("exchange", _TEXT, default("''::text")),
        _column("routing_key", _TEXT),
        _column("payload", _BYTES),
        _column("content_type", _TEXT, default("'application/json'::text")),
        _column("content_encoding", _TEXT, default("'utf-8'::text")),
        _column("headers", _JSON, default(_EMPTY_OBJECT)),
        _column("properties", _JSON, default(_EMPTY_OBJECT)),
        _optional("declarations", _JSON),
        _optional("context", _JSON),
    ]


def _outbox() -> list[SchemaItem]:
    return [
        *_message(Identity(always=True), defaults=True),
        _optional("dedup_key", _TEXT),
        _column("created_at", _INSTANT, _NOW),
        _optional("expires_at", _INSTANT),
        _column("next_attempt_at", _INSTANT, _IN_30_SECONDS),
        _column("attempts", _INT, "0"),
        _column("owner", _TEXT, "'relay'::text"),
        _optional("claimed_by", _TEXT),
        _optional("last_error", _TEXT),
        _optional("last_failed_at", _INSTANT),
        _key("outbox", "id"),
        _check("event_type must not be empty", "event_type <> ''"),
        _check("routing_key must be at most 255 bytes", "octet_length(routing_key) <= 255"),
        _check("exchange must be at most 255 bytes", "octet_length(exchange) <= 255"),
        _check("ordering_key must be 1 to 1000 bytes", "octet_length(ordering_key) BETWEEN 1 AND 1000"),
        _check("dedup_key must be 1 to 1000 bytes", "octet_length(dedup_key) BETWEEN 1 AND 1000"),
        _check("headers must be a JSON object", "json_typeof(headers) = 'object'"),
        _check("properties must be a JSON object", "json_typeof(properties) = 'object'"),
        _check("declarations must be a JSON array", "json_typeof(declarations) = 'array'"),
        _check("context must be a JSON object", "json_typeof(context) = 'object'"),
        _check("attempts must not be negative", "attempts >= 0"),
        _check(
            "times must lie in the years 1 to 9999",
            "created_at >= '0001-01-01 00:00+00' AND created_at < '10000-01-01 00:00+00' AND "
            "expires_at >= '0001-01-01 00:00+00' AND expires_at < '10000-01-01 00:00+00' AND "
            "next_attempt_at >= '0001-01-01 00:00+00'",
        ),
        _check("owner must be relay or scheduler", "owner IN ('relay', 'scheduler')"),
        _check(
            "only a row with an ordering_key can be parked", "ordering_key IS NOT NULL OR next_attempt_at < 'infinity'"
        ),
        _index("outbox_due", "next_attempt_at"),
        _index("outbox_key_order", "ordering_key", "id", where="ordering_key IS NOT NULL"),
        _index("outbox_parked", "ordering_key", "id", where="next_attempt_at = 'infinity'"),
        _index("outbox_expiry", "expires_at", where="expires_at IS NOT NULL"),
        _index("outbox_failed", "last_failed_at", "id", where="last_failed_at IS NOT NULL"),
        _index("outbox_dedup", "dedup_key", where="dedup_key IS NOT NULL", unique=True),
    ]


def _dead_letter() -> list[SchemaItem]:
    return [
        *_message(),
        _optional("dedup_key", _TEXT),
        _column("created_at", _INSTANT),
        _optional("expires_at", _INSTANT),
        _column("attempts", _INT),
        _optional("last_error", _TEXT),
        _optional("last_failed_at", _INSTANT),
        _column("reason", _TEXT),
        _column("died_at", _INSTANT, _NOW),
        _key("outbox_dead_letter", "id"),
        _check(
            "reason must be max attempts, expired, rejected or undecodable",
            "reason IN ('max attempts', 'expired', 'rejected', 'undecodable')",
        ),
        _index("outbox_dead_letter_died_at", "died_at"),
    ]


def _archive() -> list[SchemaItem]:
    return [
        *_message(),
        _column("created_at", _INSTANT),
        _column("attempts", _INT),
        _column("delivered_at", _INSTANT, _NOW),
        _key("outbox_archive", "id"),
        _index("outbox_archive_delivered_at", "delivered_at"),
    ]


def _event() -> list[SchemaItem]:
    return [
        _column("stream", _TEXT),
        _column("version", _BIGINT),
        _column("event_id", _UUID),
        _column("event_type", _TEXT),
        _column("payload", _BYTES),
        _column("content_type", _TEXT, "'application/json'::text"),
        _column("content_encoding", _TEXT, "'utf-8'::text"),
        _column("headers", _JSON, _EMPTY_OBJECT),
        _column("created_at", _INSTANT, _NOW),
        _column("epoch", _INT, "1"),
        _column("transaction_id", _BIGINT, "((pg_current_xact_id())::text)::bigint"),
        _column("position", _BIGINT, None, Identity(always=False)),
        _column("type_version", _SMALLINT, "1"),
        _key("outbox_event", "stream", "version"),
        _check("stream must be 1 to 1000 bytes", "octet_length(stream) BETWEEN 1 AND 1000"),
        _check("version must start at 1", "version >= 1"),
        _index("outbox_event_created_at", "created_at"),
        _index("outbox_event_event_id", "event_id", unique=True),
        _index("outbox_event_order", *_ORDER),
        _index("outbox_event_category", text("split_part(stream, ':'::text, 1)"), *_ORDER),
    ]


_ORDER = ("epoch", "transaction_id", "position")


def _epoch() -> list[SchemaItem]:
    return [
        _column("epoch", _INT),
        _column("system_identifier", _TEXT),
        _column("started_at", _INSTANT, _NOW),
        _key("outbox_epoch", "epoch"),
    ]


def _snapshot() -> list[SchemaItem]:
    return [
        _column("stream", _TEXT),
        _column("version", _BIGINT),
        _column("snapshot_type", _TEXT),
        _column("type_version", _SMALLINT, "1"),
        _column("payload", _BYTES),
        _column("content_type", _TEXT),
        _column("content_encoding", _TEXT),
        _column("created_at", _INSTANT, _NOW),
        _key("outbox_snapshot", "stream"),
    ]


def _subject_key() -> list[SchemaItem]:
    return [
        _column("subject", _TEXT),
        _optional("key", _BYTES),
        _column("created_at", _INSTANT, _NOW),
        _optional("forgotten_at", _INSTANT),
        _key("outbox_subject_key", "subject"),
    ]


def _inbox() -> list[SchemaItem]:
    return [
        _column("consumer", _TEXT),
        _column("event_id", _TEXT),
        _column("processed_at", _INSTANT, _NOW),
        _key("outbox_inbox", "consumer", "event_id"),
        _check("consumer must be 1 to 255 bytes", "octet_length(consumer) BETWEEN 1 AND 255"),
        _check("event_id must be 1 to 1000 bytes", "octet_length(event_id) BETWEEN 1 AND 1000"),
        _index("outbox_inbox_processed_at", "processed_at"),
    ]


def _worker() -> list[SchemaItem]:
    return [
        *(_column(name, _TEXT) for name in ("kind", "name", "role", "version", "host")),
        _column("pid", _INT),
        _column("started_at", _INSTANT, _NOW),
        _column("last_seen_at", _INSTANT, _NOW),
        _key("outbox_worker", "kind", "name"),
        _check("kind must be relay, scheduler or worker", "kind IN ('relay', 'scheduler', 'worker')"),
        _check("role must be active or standby", "role IN ('active', 'standby')"),
    ]


def _migration() -> list[SchemaItem]:
    return [
        _column("version", _INT),
        _column("name", _TEXT),
        _column("applied_at", _INSTANT, _NOW),
        _key("outbox_migration", "version"),
    ]


_TABLES: dict[str, Callable[[], list[SchemaItem]]] = {
    "outbox": _outbox,
    "outbox_dead_letter": _dead_letter,
    "outbox_archive": _archive,
    "outbox_event": _event,
    "outbox_epoch": _epoch,
    "outbox_snapshot": _snapshot,
    "outbox_subject_key": _subject_key,
    "outbox_inbox": _inbox,
    "outbox_worker": _worker,
    "outbox_migration": _migration,
}
_STORAGE: dict[str, dict[str, str]] = {
    "outbox": {
        "fillfactor": "100",
        "autovacuum_vacuum_scale_factor": "0.0",
        "autovacuum_vacuum_threshold": "5000",
        "autovacuum_vacuum_insert_scale_factor": "0.0",
        "autovacuum_vacuum_insert_threshold": "50000",
        "autovacuum_analyze_scale_factor": "0.0",
        "autovacuum_analyze_threshold": "20000",
        "autovacuum_vacuum_cost_delay": "0",
        "toast.autovacuum_vacuum_scale_factor": "0.0",
        "toast.autovacuum_vacuum_threshold": "5000",
        "toast.autovacuum_vacuum_cost_delay": "0",
    },
    "outbox_worker": {"fillfactor": "50"},
}


class OutboxTables(NamedTuple):
    outbox: Table
    outbox_dead_letter: Table
    outbox_archive: Table
    outbox_event: Table
    outbox_epoch: Table
    outbox_snapshot: Table
    outbox_subject_key: Table
    outbox_inbox: Table
    outbox_worker: Table
    outbox_migration: Table


def outbox_tables(metadata: MetaData, *, schema: str | None = None) -> OutboxTables:
    """
    Add the tables to the metadata. `schema` None is the schema of the metadata, or the first of the search path.

    `create_all` also writes the rows of outbox_migration, so that `outrider setup` knows what exists, and the first
    epoch of the event log.
    """
    tables = OutboxTables(**{name: _table(name, metadata, schema) for name in _TABLES})
    event.listen(tables.outbox_migration, "after_create", _record_migrations)
    event.listen(tables.outbox_epoch, "after_create", _record_epoch)
    return tables


def _table(name: str, metadata: MetaData, schema: str | None) -> Table:
    # Only SQLAlchemy 2.1 and newer have storage parameters of tables.
    known = any(kind is Table and "with" in names for kind, names in PGDialect.construct_arguments or ())
    storage: dict[str, Any] = {"postgresql_with": _STORAGE[name]} if known and name in _STORAGE else {}
    return Table(name, metadata, *_TABLES[name](), schema=schema, info={OUTBOX_TABLE: True}, **storage)


def _record_migrations(target: Table, connection: Connection, **options: Any) -> None:  # noqa: ARG001
    rows = [{"version": migration.version, "name": migration.name} for migration in migrations()]
    connection.execute(target.insert(), rows)


def _record_epoch(target: Table, connection: Connection, **options: Any) -> None:  # noqa: ARG001
    server = func.pg_control_system().table_valued(column("system_identifier"))
    first = select(literal(1), server.c.system_identifier)
    connection.execute(target.insert().from_select(["epoch", "system_identifier"], first))
