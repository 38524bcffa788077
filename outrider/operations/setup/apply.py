"""
Run the steps of a plan, each in its own transaction; create and drop the relay's slot.

Two set-ups may run at the same time: a migration takes a lock and checks again, and an object that another process
created meanwhile counts as existing. When the database refuses a step, the SetupError says which privilege it needs.
"""

from __future__ import annotations

from typing import Any, LiteralString

import psycopg

from outrider.errors import DatabaseError, SetupError
from outrider.operations.setup.facts import applied_migrations
from outrider.operations.setup.plan import FAILOVER_SERVER, REPLICATION, Step
from outrider.storage.connection import database_errors
from outrider.storage.sql_files import script
from outrider.storage.store import Store

# Duplicate object; and unique violation in the catalog, when two processes create the object at the same moment.
ALREADY_EXISTS = frozenset({"42710", "23505"})
INSUFFICIENT_PRIVILEGE = "42501"
REMEDIES = {
    "53400": "raise max_replication_slots (and restart PostgreSQL) or drop an unused slot",
    "55006": "first stop the relay that is connected to it",
    "55P03": "a transaction holds the table for longer than the migration waits: end it, and run this again",
    "55000": "run ALTER SYSTEM SET wal_level = logical and restart PostgreSQL",
}


def apply_step(store: Store, step: Step) -> str:
    """Run the step; returns its outcome as text."""
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
        if error.sqlstate in ALREADY_EXISTS and step.outcome == "created":
            return "already exists (another process has just created it)"
        raise _setup_error(error, step.what, step.needs) from error
    return step.outcome


def create_slot(connection: psycopg.Connection[Any], slot: str, failover: bool = False) -> None:
    """
    Create the relay's slot. Waits until all transactions that are running now have ended.

    The connection must be in autocommit: PostgreSQL refuses this in a transaction that has written. The slot does not
    see rows inserted before: the caller must hand them over with Store.hand_over_all().
    """
    if failover and connection.info.server_version < FAILOVER_SERVER * 10000:
        raise SetupError(f"failover slots need PostgreSQL {FAILOVER_SERVER} or newer")
    file = "setup/slot_failover.sql" if failover else "setup/slot.sql"
    _run(connection, script(file, slot=slot), f"create the slot {slot}")


def drop_slot(connection: psycopg.Connection[Any], slot: str) -> None:
    """Drop the slot if it exists. SetupError while a relay reads it."""
    _run(connection, script("setup/drop_slot.sql", slot=slot), f"drop the slot {slot}")


def _run(connection: psycopg.Connection[Any], sql: LiteralString, what: str) -> None:
    try:
        with database_errors():
            connection.execute(sql)
    except DatabaseError as error:
        raise _setup_error(error, what, REPLICATION) from error


def _migrate(store: Store, step: Step) -> str:
    schema = store.queries.schema
    assert step.sql is not None
    with database_errors(), store.connection.transaction():
        store.connection.execute(store.queries["setup_lock"], {"schema": schema})
        if step.version in applied_migrations(store):
            return "already applied (by another process, just now)"
        store.connection.execute(step.sql)
    return step.outcome


def _setup_error(error: DatabaseError, what: str, needs: str) -> SetupError:
    remedy = REMEDIES.get(error.sqlstate or "")
    if error.sqlstate == INSUFFICIENT_PRIVILEGE and needs:
        remedy = f"needed: {needs}"
    text = f"{what}: {error}" + (f"; {remedy}" if remedy else "")
    return SetupError(text, sqlstate=error.sqlstate)
