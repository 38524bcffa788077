"""
Facts about the server, the tables, the publication and the slot, as typed values. Reads only.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from outrider.errors import DatabaseError, SetupError
from outrider.storage.connection import database_errors
from outrider.storage.store import Store

OLDEST_SERVER = 14


class Server(NamedTuple):
    """The columns of the query `server_facts`."""

    server_version: int
    """As server_version_num: 140005."""
    wal_level: str
    max_replication_slots: int
    max_wal_senders: int
    in_recovery: bool
    role: str
    may_replicate: bool
    database: str


class PublicationShape(NamedTuple):
    """What a publication publishes."""

    all_tables: bool
    inserts: bool
    updates: bool
    deletes: bool
    truncates: bool
    tables: list[str]
    """`schema.table`, unquoted."""
    column_list: bool

    @property
    def inserts_only(self) -> bool:
        return self.inserts and not (self.updates or self.deletes or self.truncates)

    def problem(self, schema: str, publication: str) -> str | None:
        """Why the relay cannot use it; None if it can. A row filter is allowed: it makes a shard."""
        table = f"{schema}.outbox"
        if self.all_tables:
            return f"publication {publication} is for all tables, not only for {table}"
        if self.tables != [table]:
            found = ", ".join(self.tables) or "no table"
            return f"publication {publication} publishes {found}, not only {table}"
        if self.column_list:
            return f"publication {publication} publishes only some columns of {table}"
        if not self.inserts_only:
            return f"publication {publication} must publish inserts and nothing else"
        return None


@dataclass(frozen=True, slots=True)
class SlotState:
    """A replication slot: the columns of the query `slot_state`."""

    name: str
    plugin: str | None
    database: str | None
    active: bool
    active_pid: int | None
    wal_status: str | None
    """reserved, extended, unreserved or lost; None while the slot reserves nothing."""
    restart_lsn: str | None
    confirmed_flush_lsn: str | None
    invalidation_reason: str | None
    """PostgreSQL 17 and newer."""
    conflicting: bool
    """PostgreSQL 16 and newer, on standbys."""
    failover: bool
    """PostgreSQL 17 and newer."""
    retained_bytes: int | None
    """WAL that the slot keeps on disk; None on a standby and for a lost slot."""
    lag_bytes: int | None
    """WAL that the slot has not confirmed; None on a standby."""
    safe_wal_bytes: int | None
    """How much WAL can still be written before the slot may be lost; None without max_slot_wal_keep_size."""

    @property
    def lost(self) -> str | None:
        """Why the slot cannot be read any more, if possible in the server's words; None if it can be read."""
        if self.invalidation_reason:
            return self.invalidation_reason
        if self.wal_status == "lost":
            return "its WAL was removed"
        return "it conflicts with recovery" if self.conflicting else None


@dataclass(frozen=True, slots=True)
class Facts:
    """The input of a plan."""

    server: Server
    tables: frozenset[str]
    """The outbox tables that the schema holds."""
    applied: frozenset[int]
    """Versions of the applied migrations."""
    handover_seconds: float | None
    publication: PublicationShape | None
    slot: SlotState | None
    roles: frozenset[str] = frozenset()
    """Those of the roles that were asked for which exist."""
    log_moved: bool = False
    """The current epoch of the event log began on another server."""


def read_facts(store: Store, *, publication: str, slot: str, roles: Iterable[str] = ()) -> Facts:
    tables = frozenset(name for (name,) in _rows(store, "schema_tables", schema=store.queries.schema))
    return Facts(
        server=read_server(store),
        tables=tables,
        applied=applied_migrations(store),
        handover_seconds=handover_seconds(store),
        publication=publication_shape(store, publication),
        slot=slot_state(store, slot),
        roles=frozenset(name for (name,) in _rows(store, "doctor_roles", names=list(roles))),
        log_moved="outbox_epoch" in tables and any(log != this for log, this in _rows(store, "log_origin")),
    )


def read_server(store: Store) -> Server:
    return Server._make(_rows(store, "server_facts")[0])


def server_problem(store: Store) -> str | None:
    """Why the services cannot work on this server; None if they can."""
    server = read_server(store)
    if server.in_recovery:  # from PostgreSQL 16 on a relay could create a slot there, but not settle
        return "this server is a standby: point database_url at the primary"
    return too_old(server.server_version)


def too_old(server_version: int) -> str | None:
    """Why a server of this version (server_version_num) is not supported; None if it is."""
    if server_version < OLDEST_SERVER * 10000:
        return f"PostgreSQL {server_version // 10000} is too old: {OLDEST_SERVER} or newer is needed"
    return None


def applied_migrations(store: Store) -> frozenset[int]:
    """The versions of the applied migrations; empty if the schema has no outbox."""
    schema = store.queries.schema
    if ("outbox_migration",) not in _rows(store, "schema_tables", schema=schema):
        return frozenset()
    try:
        return frozenset(version for (version,) in _rows(store, "applied_migrations"))
    except DatabaseError as error:
        raise SetupError(
            f"cannot read the migrations of the schema {schema} ({error}): grant SELECT on outbox_migration",
            sqlstate=error.sqlstate,
        ) from error


def handover_seconds(store: Store) -> float | None:
    """How long a new row belongs to the relay; None without an outbox, or if the column has another kind of default."""
    rows = _rows(store, "handover_seconds", schema=store.queries.schema)
    return rows[0][0] if rows else None


def publication_shape(store: Store, publication: str) -> PublicationShape | None:
    rows = _rows(store, "publication_shape", publication=publication)
    if not rows:
        return None
    (column_list,) = _rows(store, "publication_has_column_list", publication=publication)[0]
    return PublicationShape._make((*rows[0], column_list))


def publication_problem(store: Store, schema: str, publication: str) -> str | None:
    """Why the relay cannot use the publication, in one line; None if it can."""
    shape = publication_shape(store, publication)
    return f"publication {publication} is missing" if shape is None else shape.problem(schema, publication)


def slot_state(store: Store, slot: str) -> SlotState | None:
    """The current state of the slot; None if it does not exist."""
    rows = _rows(store, "slot_state", slot=slot)
    return SlotState(*rows[0]) if rows else None


def kept_rows(store: Store) -> dict[str, int]:
    """How many rows would be lost with the tables, by kind."""
    kinds = ("undelivered messages", "dead letters", "archived messages", "events of streams", "marks of the inbox")
    return dict(zip(kinds, _rows(store, "kept_rows")[0], strict=True))


def _rows(store: Store, name: str, **parameters: object) -> list[Any]:
    with database_errors():
        return store.connection.execute(store.queries[name], parameters).fetchall()
