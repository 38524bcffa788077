"""
RunOutboxMigration: a migration operation that runs a file of sql/migrations.

It runs only on OUTRIDER["DATABASE"], if the database router allows it, and only if `outrider setup` has not applied the
file before. Reversing the first migration drops the tables with everything in them. Reversing a later one changes
nothing: the tables keep what it added, and migrating forward again finds it applied.
"""

from __future__ import annotations

from typing import Any

from django.db import router
from django.db.migrations.operations.base import Operation

from outrider.producer.django.conf import get_settings
from outrider.storage.sql_files import Queries, migrations, script


class RunOutboxMigration(Operation):
    reduces_to_sql = True
    reversible = True

    def __init__(self, version: int) -> None:
        self.version = version

    def state_forwards(self, app_label: str, state: Any) -> None:
        """Nothing: the CreateModel operations define the state of the unmanaged models."""

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:  # noqa: ARG002
        schema = get_settings().schema
        if not self._is_wanted(app_label, schema_editor) or self._is_applied(schema_editor, schema):
            return
        [migration] = [each for each in migrations() if each.version == self.version]
        _run(schema_editor, script(migration.path, schema=schema))

    def database_backwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:  # noqa: ARG002
        if self.version > 1 or not self._is_wanted(app_label, schema_editor):
            return
        _run(schema_editor, script("setup/drop_tables.sql", schema=get_settings().schema))

    def describe(self) -> str:
        return f"Run migration {self.version} of the outbox"

    def _is_wanted(self, app_label: str, schema_editor: Any) -> bool:
        connection = schema_editor.connection
        return (
            connection.alias == get_settings().database
            and connection.vendor == "postgresql"
            and bool(router.allow_migrate(connection.alias, app_label))
        )

    def _is_applied(self, schema_editor: Any, schema: str) -> bool:
        if schema_editor.collect_sql:
            return False
        queries = Queries(schema)
        with schema_editor.connection.cursor() as cursor:
            cursor.execute(queries["schema_tables"], {"schema": schema})
            if ("outbox_migration",) not in cursor.fetchall():
                return False
            cursor.execute(queries["applied_migrations"])
            return (self.version,) in cursor.fetchall()


def _run(schema_editor: Any, text: str) -> None:
    schema_editor.execute(text, params=None)
