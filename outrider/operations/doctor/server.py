"""
The server: can it replicate, and has it a free replication slot and a free WAL sender?
"""

from __future__ import annotations

from dataclasses import dataclass

from outrider.operations.doctor.finding import Finding, failed, ok, warning
from outrider.operations.setup.facts import OLDEST_SERVER, Server, SlotState

RESTART = "and restart PostgreSQL"
LEAST_TIMEOUT_INTERVALS = 3
"""wal_sender_timeout must be at least so many status intervals, so that one report may be late."""


@dataclass(frozen=True, slots=True)
class Limits:
    wal_sender_timeout_seconds: float
    max_slot_wal_keep_bytes: int | None
    """None: no limit."""
    autovacuum: bool


@dataclass(frozen=True, slots=True)
class ReplicationUse:
    slots: int
    senders: int
    standbys: int
    """WAL senders without a logical slot: standbys, and running backups."""


def check_version(server: Server) -> Finding:
    major, minor = divmod(server.server_version, 10000)
    name = f"PostgreSQL {major}.{minor}"
    if major < OLDEST_SERVER:
        return failed("server", f"{name} is too old", f"upgrade to {OLDEST_SERVER} or newer")
    if server.in_recovery:
        return failed("server", f"{name} is a standby", "point database_url at the primary")
    return ok("server", f"{name}, database {server.database}, role {server.role}")


def check_wal_level(server: Server) -> Finding:
    if server.wal_level == "logical":
        return ok("wal_level", "logical")
    return failed(
        "wal_level",
        f"{server.wal_level}, but the relay needs logical",
        f"run ALTER SYSTEM SET wal_level = logical {RESTART} (RDS: rds.logical_replication = 1, Cloud SQL: "
        "cloudsql.logical_decoding = on), or use no relay: `outrider setup --polling-only`",
    )


def check_slots(server: Server, use: ReplicationUse, slot: SlotState | None) -> Finding:
    check, most = "max_replication_slots", server.max_replication_slots
    found = f"{use.slots} of {most} replication slots are in use"
    if use.slots < most:
        return ok(check, found)
    remedy = f"raise max_replication_slots {RESTART}, or drop an unused slot"
    if slot is None:
        return failed(check, f"{found}, and the relay has none yet", remedy)
    return warning(check, found, remedy)


def check_senders(server: Server, use: ReplicationUse, slot: SlotState | None) -> Finding:
    check, most = "max_wal_senders", server.max_wal_senders
    found = f"{use.senders} of {most} WAL senders are in use"
    if use.senders < most:
        return ok(check, found)
    remedy = f"raise max_wal_senders {RESTART}"
    if slot is None or not slot.active:
        return failed(check, f"{found}, and the relay is not connected yet", remedy)
    return warning(check, f"{found}: a standby relay cannot take over before the old sender has ended", remedy)


def check_sender_timeout(limits: Limits, status_interval_seconds: float) -> Finding:
    check, timeout = "wal_sender_timeout", limits.wal_sender_timeout_seconds
    least = LEAST_TIMEOUT_INTERVALS * status_interval_seconds
    if timeout == 0:
        return warning(
            check,
            "0: PostgreSQL does not notice that the relay's machine is gone, and no standby relay can take over",
            "set it to its default, 60s",
        )
    if timeout < least:
        return warning(
            check,
            f"{timeout:g} s is too short for a relay that reports every {status_interval_seconds:g} s",
            f"raise it to {least:g} s or more, or lower status_interval_seconds",
        )
    return ok(check, f"{timeout:g} s, the relay reports every {status_interval_seconds:g} s")
