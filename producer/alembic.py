"""
Alembic: the outbox's migrations as operations.

    import outrider.producer.alembic  # in env.py, or in the migration itself

    def upgrade() -> None:
        op.upgrade_outbox(to=1)  # one revision for each version

    def downgrade() -> None:
        op.downgrade_outbox()

`upgrade_outbox` runs the files of sql/migrations that are not applied yet, up to version `to`. `downgrade_outbox` drops
the tables with everything in them: the outbox's migrations cannot be undone one by one. Offline mode
(`alembic upgrade --sql`) prints the scripts. The publication and the slot are created by `outrider setup`.
"""

from __future__ import annotations

from typing import Any

from alembic.operations import MigrateOperation, Operations
from sqlalchemy import Connection

from outrider.producer.handles import adapter_for, no_guard
from outrider.producer.statement import Statement
from outrider.storage.sql_files import Queries, migrations, script


@Operations.register_operation("upgrade_outbox")
class UpgradeOutbox(MigrateOperation):
    def __init__(self, to: int, schema: str) -> None:
        self.to = to
        self.schema = schema

    @classmethod
    def upgrade_outbox(cls, operations: Operations, *, to: int, schema: str = "public") -> None:
        """Bring the outbox of a schema to a version."""
        operations.invoke(cls(to, schema))

    def reverse(self) -> DowngradeOutbox:
        return DowngradeOutbox(self.schema)


@Operations.register_operation("downgrade_outbox")
class DowngradeOutbox(MigrateOperation):
    def __init__(self, schema: str) -> None:
        self.schema = schema

    @classmethod
    def downgrade_outbox(cls, operations: Operations, *, schema: str = "public") -> None:
        """Drop the outbox of a schema: undelivered messages, dead letters, archive and event streams."""
        operations.invoke(cls(schema))


@Operations.implementation_for(UpgradeOutbox)
def _upgrade(operations: Operations, operation: UpgradeOutbox) -> None:
    known = migrations()
    if operation.to not in [migration.version for migration in known]:
        raise ValueError(f"the outbox has no migration {operation.to}; the newest is {known[-1].version}")
    applied = _applied(operations, operation.schema)
    for migration in known:
        if migration.version <= operation.to and migration.version not in applied:
            _run(operations, script(migration.path, schema=operation.schema))


@Operations.implementation_for(DowngradeOutbox)
def _downgrade(operations: Operations, operation: DowngradeOutbox) -> None:
    _run(operations, script("setup/drop_tables.sql", schema=operation.schema))


def _applied(operations: Operations, schema: str) -> set[int]:
    """The migrations that the schema has; none in offline mode, where there is no database to read."""
    if operations.migration_context.as_sql:
        return set()
    queries = Queries(schema)
    connection = operations.get_bind()
    if ("outbox_migration",) not in _fetch(connection, Statement(queries["schema_tables"]), {"schema": schema}):
        return set()
    return {version for (version,) in _fetch(connection, Statement(queries["applied_migrations"]), {})}


def _fetch(connection: Connection, statement: Statement, parameters: dict[str, Any]) -> list[tuple[Any, ...]]:
    rows = adapter_for(connection).fetch(connection, statement, parameters, no_guard)
    return [tuple(row) for row in rows]


def _run(operations: Operations, text: str) -> None:
    """Run a script of several statements in the migration's transaction."""
    if operations.migration_context.as_sql:
        operations.migration_context.impl.static_output(text)
        return
    connection: Any = operations.get_bind()
    driver = connection.connection.dbapi_connection
    if hasattr(driver, "run_async"):
        # asyncpg's cursor prepares its statements, and only a single statement can be prepared.
        driver.run_async(lambda raw: raw.execute(text))
        return
    cursor = driver.cursor()
    try:
        cursor.execute(text)
    finally:
        cursor.close()
