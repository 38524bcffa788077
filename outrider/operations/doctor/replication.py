"""
The replication connection: opened for real, as the relay would, and closed at once. Nothing is streamed.

A pooler in between shows in one of two ways: it refuses a connection that asks for replication, or it drops the request
and what comes back is an ordinary connection, which does not know IDENTIFY_SYSTEM. One that passes replication through
does no harm, and is not found.
"""

from __future__ import annotations

from dataclasses import dataclass

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from outrider.errors import DatabaseError
from outrider.operations.doctor.finding import Finding, failed, ok, warning
from outrider.storage.store import database_errors

CHECK = "replication connection"

_SYNTAX_ERROR = "42601"
_DIRECT = "set replication_url to an address that leads straight to PostgreSQL"

# A refused connection has no SQLSTATE in psycopg: the server's words must do. The first that occurs decides.
_REMEDIES = (
    ("startup parameter", f"a pooler refuses replication: {_DIRECT}"),
    ("WAL sender", "ALTER ROLE ... REPLICATION (RDS: GRANT rds_replication TO ...)"),
    ("replication role", "ALTER ROLE ... REPLICATION (RDS: GRANT rds_replication TO ...)"),
    ("max_wal_senders", "raise max_wal_senders and restart PostgreSQL"),
    ("pg_hba.conf", "allow the role to connect in pg_hba.conf"),
    ("password", "correct the password of replication_url"),
    ("authentication", "correct the user and password of replication_url"),
)
_OTHERWISE = f"is the address right, and does no pooler stand in between? Else {_DIRECT}"


@dataclass(frozen=True, slots=True)
class ReplicationProbe:
    """What came of a connection in replication mode."""

    error: str | None = None
    swallowed: bool = False
    """It connected, but not in replication mode."""
    system: str | None = None
    database: str | None = None


def probe(dsn: str, *, connect_timeout_seconds: float) -> ReplicationProbe:
    options = {"replication": "database", "application_name": "outrider doctor"}
    if "connect_timeout" not in conninfo_to_dict(dsn):
        options["connect_timeout"] = str(max(2, round(connect_timeout_seconds)))
    try:
        with (
            database_errors(),
            psycopg.connect(make_conninfo(dsn, **options), autocommit=True) as connection,
        ):
            row = connection.execute("IDENTIFY_SYSTEM").fetchone()
    except DatabaseError as error:
        return ReplicationProbe(error=str(error), swallowed=error.sqlstate == _SYNTAX_ERROR)
    return (
        ReplicationProbe(system=str(row[0]), database=str(row[3]))
        if row
        else ReplicationProbe(error="no answer to IDENTIFY_SYSTEM")
    )


def check_connection(wire: ReplicationProbe, *, database: str, system: str | None) -> Finding:
    """`database` and `system` are what database_url leads to; None: this role may not know."""
    if wire.swallowed:
        return failed(CHECK, "a pooler made an ordinary connection of it", _DIRECT)
    if wire.error is not None:
        remedy = next((remedy for words, remedy in _REMEDIES if words in wire.error), _OTHERWISE)
        return failed(CHECK, wire.error, remedy)
    if system is not None and wire.system != system:
        return failed(
            CHECK, "replication_url and database_url lead to different servers", "correct one of them: both the primary"
        )
    if wire.database != database:
        return failed(
            CHECK,
            f"replication_url leads to the database {wire.database}, database_url to {database}",
            "correct one of them",
        )
    return ok(CHECK, f"opened, straight to the database {database}")


def check_role(role: str, may_replicate: bool | None) -> Finding:
    check = "replication role"
    if may_replicate is None:
        return warning(check, f"there is no role {role} here", "correct the user of replication_url")
    if may_replicate:
        return ok(check, f"{role} may replicate")
    return failed(
        check,
        f"{role} has neither the REPLICATION attribute nor rds_replication",
        f"ALTER ROLE {role} REPLICATION (RDS: GRANT rds_replication TO {role})",
    )
