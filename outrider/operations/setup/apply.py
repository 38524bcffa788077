"""
Do it: run one step of a plan at a time, each in its own transaction.

Two set-ups at once do no harm: migrations take a lock and look again, and what the other one made meanwhile counts as
there. A refusal of the database becomes a SetupError with what the step needs.
"""

from __future__ import annotations

from typing import Any, LiteralString

import psycopg

from outrider.errors import DatabaseError, SetupError
from outrider.operations.setup.facts import applied_migrations
from outrider.operations.setup.plan import FAILOVER_SERVER, REPLICATION, Step
from outrider.storage.sql_files import script
from outrider.storage.store import Store, database_errors

# A duplicate object; and what it is called when both were made at the same moment, the catalogue's unique index.
MADE_ALREADY = frozenset({"42710", "23505"})
INSUFFICIENT_PRIVILEGE = "42501"
REMEDIES = {
    "53400": "raise max_replication_slots (and restart PostgreSQL) or drop a slot that nobody uses",
    "55006": "stop the relay that is connected to it first",
    "55000": "run ALTER SYSTEM SET wal_level = logical and restart PostgreSQL",
}


def apply_step(store: Store, step: Step) -> str:
    """Run the step; returns what came of it, for people."""
    if step.sql is None:
        return step.outcome
    try:
        if step.kind == "migration":
            return _migrate(store, step)
        if step.kind == "hand over":
            handed_over = store.hand_over_all()
            return f"{handed_over} handed over to the scheduler" if handed_over else "none"
        with database_errors():
            store.connection.execute(step.sql)
    except DatabaseError as error:
        if error.sqlstate in MADE_ALREADY and step.outcome == "created":
            return "already there (made by somebody else just now)"
        raise _explained(error, step.what, step.needs) from error
    return step.outcome


def create_slot(connection: psycopg.Connection[Any], slot: str, failover: bool = False) -> None:
    """
    Create the relay's slot. Waits for the transactions that are running now to end.

    The connection must be in autocommit: PostgreSQL refuses in a transaction that has written. The rows that are in
    the table then are the scheduler's: Store.hand_over_all() comes next.
    """
    if failover and connection.info.server_version < FAILOVER_SERVER * 10000:
        raise SetupError(f"failover slots need PostgreSQL {FAILOVER_SERVER} or newer")
    file = "setup/slot_failover.sql" if failover else "setup/slot.sql"
    _run(connection, script(file, slot=slot), f"create the slot {slot}")


def drop_slot(connection: psycopg.Connection[Any], slot: str) -> None:
    """Drop the slot if it is there; SetupError while somebody reads from it."""
    _run(connection, script("setup/drop_slot.sql", slot=slot), f"drop the slot {slot}")


def _run(connection: psycopg.Connection[Any], sql: LiteralString, what: str) -> None:
    try:
        with database_errors():
            connection.execute(sql)
    except DatabaseError as error:
        raise _explained(error, what, REPLICATION) from error


def _migrate(store: Store, step: Step) -> str:
    schema = store.queries.schema
    assert step.sql is not None
    with database_errors(), store.connection.transaction():
        store.connection.execute(store.queries["setup_lock"], {"schema": schema})
        if step.version in applied_migrations(store):
            return "already there (applied by somebody else just now)"
        store.connection.execute(step.sql)
    return step.outcome


def _explained(error: DatabaseError, what: str, needs: str) -> SetupError:
    remedy = REMEDIES.get(error.sqlstate or "")
    if error.sqlstate == INSUFFICIENT_PRIVILEGE and needs:
        remedy = f"needed: {needs}"
    text = f"{what}: {error}" + (f"; {remedy}" if remedy else "")
    return SetupError(text, sqlstate=error.sqlstate)
