"""
Run the outbox's migrations through SQLAlchemy, in the caller's transaction: for applications that create their tables
at start, and for the Alembic operations.

    with engine.begin() as connection:
        ensure_outbox(connection)

    async with async_engine.begin() as connection:
        await ensure_outbox_async(connection)

Several processes can call it at once: the first one migrates, the others wait for its commit and find nothing to do.
The lock is the one of `outrider setup`. Nothing here commits, and the publication and the slot are not created.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from outrider.errors import SetupError
from outrider.producer.handles import adapter_for, no_guard
from outrider.producer.handles.sqlalchemy import connection_of, in_transaction
from outrider.producer.statement import Statement
from outrider.storage.sql_files import Migration, Queries, migrations, script


def ensure_outbox(connection: Any, *, schema: str = "public") -> list[int]:
    """
    Bring the outbox of a schema to the newest version; returns the versions of the migrations that were run.

    connection  a SQLAlchemy Connection or Session, in a transaction that the caller commits

    SetupError with the isolation level AUTOCOMMIT: a migration that fails must leave nothing behind.
    """
    if not in_transaction(connection):
        raise SetupError("ensure_outbox needs a transaction, and this connection is in autocommit: use engine.begin()")
    queries = Queries(schema)
    _fetch(connection, queries, "setup_lock", schema=schema)
    pending = pending_migrations(connection, schema)
    run_migrations(connection, pending, schema)
    return [migration.version for migration in pending]


async def ensure_outbox_async(connection: Any, *, schema: str = "public") -> list[int]:
    """As ensure_outbox, for an AsyncConnection or AsyncSession."""
    versions: list[int] = await connection.run_sync(ensure_outbox, schema=schema)
    return versions


def pending_migrations(connection: Any, schema: str) -> list[Migration]:
    """The migrations that the schema does not have, in order."""
    applied = applied_migrations(connection, schema)
    return [migration for migration in migrations() if migration.version not in applied]


def applied_migrations(connection: Any, schema: str) -> set[int]:
    """The versions that the schema has; empty without an outbox."""
    queries = Queries(schema)
    if ("outbox_migration",) not in _fetch(connection, queries, "schema_tables", schema=schema):
        return set()
    return {version for (version,) in _fetch(connection, queries, "applied_migrations")}


def run_migrations(connection: Any, chosen: Iterable[Migration], schema: str) -> None:
    for migration in chosen:
        run_script(connection, script(migration.path, schema=schema))


def run_script(connection: Any, text: str) -> None:
    """Run a script of several statements in the connection's transaction."""
    driver: Any = connection_of(connection).connection.dbapi_connection
    if hasattr(driver, "run_async"):
        # asyncpg's cursor prepares its statements, and only a single statement can be prepared.
        driver.run_async(lambda raw: raw.execute(text))
        return
    cursor = driver.cursor()
    try:
        cursor.execute(text)
    finally:
        cursor.close()


def _fetch(connection: Any, queries: Queries, name: str, **parameters: object) -> list[tuple[Any, ...]]:
    rows = adapter_for(connection).fetch(connection, Statement(queries[name]), parameters, no_guard)
    return [tuple(row) for row in rows]
