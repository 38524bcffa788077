"""
The replication connection: opened as the relay opens it, and closed at once. Nothing is streamed.

A pooler is detected in two cases: it refuses a connection that asks for replication, or it ignores the request and
opens an ordinary connection, which does not know IDENTIFY_SYSTEM. A pooler that passes replication through works, and
is not reported.
"""

from __future__ import annotations

from dataclasses import dataclass

from psycopg.conninfo import make_conninfo

from outrider.errors import DatabaseError
from outrider.operations.doctor.finding import Finding, failed, ok, unknown, warning
from outrider.storage.connection import connect, database_errors

CHECK = "replication connection"

_SYNTAX_ERROR = "42601"
_DIRECT = "set replication_url to an address that connects directly to PostgreSQL"

# psycopg gives a refused connection no SQLSTATE: the first of these phrases in the server's message decides.
_REMEDIES = (
    ("startup parameter", f"a pooler refuses replication: {_DIRECT}"),
    ("WAL sender", "ALTER ROLE ... REPLICATION (RDS: GRANT rds_replication TO ...)"),
    ("replication role", "ALTER ROLE ... REPLICATION (RDS: GRANT rds_replication TO ...)"),
    ("max_wal_senders", "raise max_wal_senders and restart PostgreSQL"),
    ("pg_hba.conf", "allow the role to connect in pg_hba.conf"),
    ("password", "correct the password of replication_url"),
    ("authentication", "correct the user and password of replication_url"),
)
_OTHERWISE = f"check the address; if a pooler is in between, {_DIRECT}"


@dataclass(frozen=True, slots=True)
class ReplicationProbe:
    """The result of a connection attempt in replication mode."""

    error: str | None = None
    replication_ignored: bool = False
    """It connected, but not in replication mode."""
    system: str | None = None
    database: str | None = None


def probe(dsn: str, *, connect_timeout_seconds: float) -> ReplicationProbe:
    replication_dsn = make_conninfo(dsn, replication="database")
    try:
        with (
            database_errors(),
            connect(
                replication_dsn,
                application_name="outrider doctor",
                connect_timeout_seconds=connect_timeout_seconds,
            ) as connection,
        ):
            row = connection.execute("IDENTIFY_SYSTEM").fetchone()
    except DatabaseError as error:
        return ReplicationProbe(error=str(error), replication_ignored=error.sqlstate == _SYNTAX_ERROR)
    if row is None:
        return ReplicationProbe(error="no answer to IDENTIFY_SYSTEM")
    return ReplicationProbe(system=str(row[0]), database=str(row[3]))


def check_connection(probed: ReplicationProbe, *, database: str, system: str | None) -> Finding:
    """`database` and `system` are those of database_url; None: this role may not read it."""
    if probed.replication_ignored:
        return failed(CHECK, "a pooler opened an ordinary connection instead", _DIRECT)
    if probed.error is not None:
        remedy = next((remedy for words, remedy in _REMEDIES if words in probed.error), _OTHERWISE)
        return failed(CHECK, probed.error, remedy)
    if system is not None and probed.system != system:
        return failed(
            CHECK,
            "replication_url and database_url lead to different servers",
            "correct one of them: both must lead to the primary",
        )
    if probed.database != database:
        return failed(
            CHECK,
            f"replication_url leads to the database {probed.database}, database_url to {database}",
            "correct one of them",
        )
    if system is None:
        return unknown(
            CHECK,
            f"opened, directly to a database {database}; whether it is the server of database_url could not be read",
            "GRANT EXECUTE ON FUNCTION pg_control_system TO this role",
        )
    return ok(CHECK, f"opened, directly to the database {database}")


def check_role(role: str, may_replicate: bool | None) -> Finding:
    check = "replication role"
    if may_replicate is None:
        return warning(check, f"this server has no role {role}", "correct the user of replication_url")
    if may_replicate:
        return ok(check, f"{role} may replicate")
    return failed(
        check,
        f"{role} has neither the REPLICATION attribute nor rds_replication",
        f"ALTER ROLE {role} REPLICATION (RDS: GRANT rds_replication TO {role})",
    )
