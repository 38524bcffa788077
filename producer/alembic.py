"""
Alembic: the outbox's migrations as operations, also for autogenerate.

    import outrider.producer.alembic  # in env.py

    def upgrade() -> None:
        op.upgrade_outbox(to=1)  # one revision for each version

    def downgrade() -> None:
        op.downgrade_outbox()

`upgrade_outbox` runs the files of sql/migrations that are not applied yet, up to version `to`. `downgrade_outbox` drops
the tables with everything in them: the outbox's migrations cannot be undone one by one. Offline mode
(`alembic upgrade --sql`) prints the scripts. The publication and the slot are created by `outrider setup`.

With `outbox_tables` in the metadata, `alembic revision --autogenerate` writes `op.upgrade_outbox` while the database
lacks migrations, instead of operations on the outbox's tables. In a database with all of them it compares the tables
like any other, and finds no difference.
"""

from __future__ import annotations

from typing import Any

from alembic import util
from alembic.autogenerate import comparators, renderers
from alembic.autogenerate.api import AutogenContext
from alembic.operations import MigrateOperation, Operations, ops

from outrider.producer.sqlalchemy import OUTBOX_TABLE
from outrider.producer.sqlalchemy_migrations import applied_migrations, run_migrations, run_script
from outrider.storage.sql_files import migrations, script


@Operations.register_operation("upgrade_outbox")
class UpgradeOutbox(MigrateOperation):
    def __init__(self, to: int, schema: str, since: int = 0) -> None:
        self.to = to
        self.schema = schema
        self.since = since  # the version before, for the reverse

    @classmethod
    def upgrade_outbox(cls, operations: Operations, *, to: int, schema: str = "public") -> None:
        """Bring the outbox of a schema to a version."""
        operations.invoke(cls(to, schema))

    def reverse(self) -> MigrateOperation:
        """After the first migration, which creates the tables, nothing can be undone: the version stays."""
        return DowngradeOutbox(self.schema) if self.since == 0 else UpgradeOutbox(self.since, self.schema)


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
    wanted = [migration for migration in known if migration.version <= operation.to]
    if operations.migration_context.as_sql:  # there is no database to ask what is applied
        for migration in wanted:
            _print(operations, script(migration.path, schema=operation.schema))
        return
    connection = operations.get_bind()
    applied = applied_migrations(connection, operation.schema)
    run_migrations(connection, [each for each in wanted if each.version not in applied], operation.schema)


@Operations.implementation_for(DowngradeOutbox)
def _downgrade(operations: Operations, operation: DowngradeOutbox) -> None:
    text = script("setup/drop_tables.sql", schema=operation.schema)
    if operations.migration_context.as_sql:
        _print(operations, text)
    else:
        run_script(operations.get_bind(), text)


def _print(operations: Operations, text: str) -> None:
    operations.migration_context.impl.static_output(text)


# Run after Alembic's own comparison. Before Alembic 1.18 there are no priorities: the last registered runs last.
_LAST: dict[str, Any] = {"priority": util.DispatchPriority.LAST} if hasattr(util, "DispatchPriority") else {}


@comparators.dispatch_for("schema", **_LAST)
def _autogenerate(context: AutogenContext, upgrade_ops: ops.UpgradeOps, schemas: set[str | None]) -> None:  # noqa: ARG001
    """Replace operations on the outbox's tables by `upgrade_outbox`, where migrations are not applied."""
    if context.connection is None or context.connection.dialect.name != "postgresql":
        return
    newest = migrations()[-1].version
    ours = {(table.schema, table.name) for table in context.sorted_tables if table.info.get(OUTBOX_TABLE)}
    default_schema = context.connection.dialect.default_schema_name
    for schema in {schema for schema, _ in ours}:
        name = schema or default_schema or "public"
        applied = max(applied_migrations(context.connection, name), default=0)
        if applied >= newest:
            continue
        # Alembic names the default schema None.
        tables = {(None if name == default_schema else name, table) for of, table in ours if of == schema}
        upgrade_ops.ops[:] = [each for each in upgrade_ops.ops if _table_of(each) not in tables]
        upgrade_ops.ops.append(UpgradeOutbox(newest, name, since=applied))


def _table_of(operation: MigrateOperation) -> tuple[str | None, str] | None:
    name = getattr(operation, "table_name", None)
    return None if name is None else (getattr(operation, "schema", None), name)


@renderers.dispatch_for(UpgradeOutbox)
def _render_upgrade(context: AutogenContext, operation: UpgradeOutbox) -> str:
    context.imports.add("import outrider.producer.alembic")
    return f"op.upgrade_outbox(to={operation.to}{_schema_argument(', ', operation.schema)})"


@renderers.dispatch_for(DowngradeOutbox)
def _render_downgrade(context: AutogenContext, operation: DowngradeOutbox) -> str:
    context.imports.add("import outrider.producer.alembic")
    return f"op.downgrade_outbox({_schema_argument('', operation.schema)})"


def _schema_argument(separator: str, schema: str) -> str:
    return "" if schema == "public" else f"{separator}schema={schema!r}"
