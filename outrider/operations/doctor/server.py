"""
The server: is it one that can replicate, and is there room for one more slot and one more WAL sender?
"""

from __future__ import annotations

from dataclasses import dataclass

from outrider.operations.doctor.finding import Finding, failed, ok, warning
from outrider.operations.setup.facts import OLDEST_SERVER, SlotState

RESTART = "and restart PostgreSQL"
LEAST_TIMEOUT_INTERVALS = 3
"""So many status intervals must fit into wal_sender_timeout: one report may be late."""


@dataclass(frozen=True, slots=True)
class Server:
    """The columns of server_facts."""

    server_version: int
    wal_level: str
    max_replication_slots: int
    max_wal_senders: int
    in_recovery: bool
    role: str
    may_replicate: bool
    database: str


@dataclass(frozen=True, slots=True)
class Limits:
    wal_sender_timeout_seconds: float
    max_slot_wal_keep_bytes: int | None
    """None: no limit."""
    autovacuum: bool


@dataclass(frozen=True, slots=True)
class Use:
    slots: int
    senders: int
    standbys: int
    """Senders that feed no logical slot: standbys, and backups while they run."""


def check_version(server: Server) -> Finding:
    major, minor = divmod(server.server_version, 10000)
    name = f"PostgreSQL {major}.{minor}"
    if major < OLDEST_SERVER:
        return failed("server", f"{name} is too old", f"upgrade to {OLDEST_SERVER} or newer")
    if server.in_recovery:
        return failed("server", f"{name}, a standby", "point database_url at the primary")
    return ok("server", f"{name}, database {server.database}, role {server.role}")


def check_wal_level(server: Server) -> Finding:
    if server.wal_level == "logical":
        return ok("wal_level", "logical")
    return failed(
        "wal_level",
        f"{server.wal_level}, and the relay needs logical",
        f"run ALTER SYSTEM SET wal_level = logical {RESTART} (RDS: rds.logical_replication = 1, Cloud SQL: "
        "cloudsql.logical_decoding = on), or deliver without a relay: `outrider setup --polling-only`",
    )


def check_slots(server: Server, use: Use, slot: SlotState | None) -> Finding:
    check, most = "max_replication_slots", server.max_replication_slots
    found = f"{use.slots} of {most} replication slots are taken"
    if use.slots < most:
        return ok(check, found)
    remedy = f"raise max_replication_slots {RESTART}, or drop a slot that nobody uses"
    if slot is None:
        return failed(check, f"{found}, and the relay has none yet", remedy)
    return warning(check, found, remedy)


def check_senders(server: Server, use: Use, slot: SlotState | None) -> Finding:
    check, most = "max_wal_senders", server.max_wal_senders
    found = f"{use.senders} of {most} WAL senders are taken"
    if use.senders < most:
        return ok(check, found)
    remedy = f"raise max_wal_senders {RESTART}"
    if slot is None or not slot.active:
        return failed(check, f"{found}, and the relay is not connected yet", remedy)
    return warning(check, f"{found}: a standby relay could not take over before the old sender has ended", remedy)


def check_sender_timeout(limits: Limits, status_interval_seconds: float) -> Finding:
    check, timeout = "wal_sender_timeout", limits.wal_sender_timeout_seconds
    least = LEAST_TIMEOUT_INTERVALS * status_interval_seconds
    if timeout == 0:
        return warning(
            check,
            "0: PostgreSQL never notices that a relay's machine is gone, and keeps its standby out",
            "set it to its default, 60s",
        )
    if timeout < least:
        return warning(
            check,
            f"{timeout:g} s is short for a relay that reports every {status_interval_seconds:g} s",
            f"raise it to {least:g} s or more, or lower status_interval_seconds",
        )
    return ok(check, f"{timeout:g} s, the relay reports every {status_interval_seconds:g} s")
