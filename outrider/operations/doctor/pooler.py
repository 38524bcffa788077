"""
The pooler, if database_url leads to one: its mode, and whether it follows prepared statements.

A pooler is recognised by its cancel key: the process id that the client got at the start is not that of the backend
that runs its statements. PgBouncer is asked for its version where this role may use its console. What a pooler can do
is tried, not derived from its version. The connection for replication is checked in replication.py.
"""

from __future__ import annotations

import select
import time
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGconn

from outrider.errors import DatabaseError
from outrider.operations.doctor.finding import Finding, failed, ok, warning
from outrider.storage.connection import backend_pid, is_pooled
from outrider.storage.store import Store

CHECK = "pooler"
TRIES = 5
ANSWER_SECONDS = 2.0
STATEMENT = b"outrider_doctor"


@dataclass(frozen=True, slots=True)
class Pooler:
    version: str | None = None
    """As its console says, such as `PgBouncer 1.18.0`; None: this role may not ask."""
    transactions: bool = True
    """False in statement mode."""
    shared: bool = False
    """Two clients were given the same backend: transaction mode."""
    follows_prepared: bool = False
    """A prepared statement is found again on whatever backend the client is given."""


def find_pooler(store: Store, dsn: str, *, connect_timeout_seconds: float) -> Pooler | None:
    """The pooler between this process and PostgreSQL; None: connected directly."""
    connection = store.connection
    if not is_pooled(connection):
        return None
    timeout = max(2, round(connect_timeout_seconds))
    version = _version(dsn, timeout)
    try:
        with connection.transaction(force_rollback=True):
            follows = _follows_prepared(store)
    except psycopg.Error as error:
        if "statement pooling" not in str(error):
            raise DatabaseError(f"PostgreSQL: {str(error).strip()}", sqlstate=error.sqlstate) from error
        return Pooler(version, transactions=False)
    shared = _is_shared(connection, dsn, store.queries["backend_pid"], timeout)
    return Pooler(version, shared=shared, follows_prepared=follows)


def _version(dsn: str, timeout: int) -> str | None:
    """PgBouncer's console is a database of its own, which knows only the simple protocol."""
    conninfo = make_conninfo(dsn, dbname="pgbouncer", connect_timeout=timeout)
    try:
        with closing(psycopg.connect(conninfo, autocommit=True)) as console:
            row = psycopg.ClientCursor(console).execute("SHOW VERSION").fetchone()
    except psycopg.Error:
        return None
    return str(row[0]) if row else None


def _follows_prepared(store: Store) -> bool:
    """Call it in a transaction, which stays on one backend. A pooler that follows statements gives them other names."""
    connection = store.connection
    if connection.pgconn.prepare(STATEMENT, store.queries["backend_pid"].encode()).status != ExecStatus.COMMAND_OK:
        return False  # another client has left its own there
    names = connection.execute(store.queries["doctor_prepared_statements"]).fetchall()
    if (STATEMENT.decode(),) not in names:
        return True
    connection.execute(sql.SQL("DEALLOCATE {}").format(sql.Identifier(STATEMENT.decode())))
    return False


def _is_shared(connection: psycopg.Connection[Any], dsn: str, statement: str, timeout: int) -> bool:
    """
    Between their transactions, clients of a pool are given the backend that was used last. In session mode, a second
    client may be given none as long as the first is connected: its answer is not waited for without limit.
    """
    try:
        with closing(psycopg.connect(make_conninfo(dsn, connect_timeout=timeout), autocommit=True)) as other:
            return any(backend_pid(connection) == _answer(other.pgconn, statement) for _ in range(TRIES))
    except (psycopg.Error, TimeoutError):
        return False


def _answer(pgconn: PGconn, statement: str) -> int:
    """The number that the statement returns. TimeoutError after ANSWER_SECONDS."""
    pgconn.send_query(statement.encode())
    deadline = time.monotonic() + ANSWER_SECONDS
    while pgconn.is_busy():
        if not select.select([pgconn.socket], [], [], max(0, deadline - time.monotonic()))[0]:
            raise TimeoutError
        pgconn.consume_input()
    results = list(iter(pgconn.get_result, None))
    return int(results[0].get_value(0, 0) or 0)


def check_pooler(pooler: Pooler | None) -> Finding:
    if pooler is None:
        return ok(CHECK, "none: database_url leads to PostgreSQL itself")
    name = pooler.version or "a pooler"
    if not pooler.transactions:
        return failed(
            CHECK,
            f"{name} in statement mode, which refuses transactions",
            "set pool_mode = transaction, or point database_url at PostgreSQL itself",
        )
    if not pooler.shared:
        return ok(CHECK, f"{name} in session mode")
    if pooler.follows_prepared:
        return ok(CHECK, f"{name} in transaction mode, with prepared statements")
    return warning(
        CHECK,
        f"{name} in transaction mode, without prepared statements: the scheduler and the commands use none here, but "
        "applications whose driver does will fail",
        "PgBouncer 1.21 or newer follows them, with max_prepared_statements above 0; or turn them off in the "
        "applications: prepare_threshold=None in psycopg, statement_cache_size=0 in asyncpg",
    )
