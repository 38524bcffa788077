"""SQLAlchemy's metadata and Alembic's operations agree with sql/."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from sqlalchemy import MetaData, create_engine, inspect, select
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

import outrider.producer.alembic
from outrider.producer.sqlalchemy import outbox_tables
from outrider.storage.sql_files import migrations
from tests.fixtures.database import Database, create_database, drop_database
from tests.fixtures.handles import url_for
from tests.integration.test_schema import describe

ENV = """
import outrider.producer.alembic
from alembic import context

def run(connection):
    context.configure(connection=connection)
    with context.begin_transaction():
        context.run_migrations()

if context.is_offline_mode():
    context.configure(dialect_name="postgresql", literal_binds=True)
    with context.begin_transaction():
        context.run_migrations()
else:
    context.config.attributes["run"](run)
"""
REVISION = """
from alembic import op

revision = "first"
down_revision = None

def upgrade() -> None:
    op.upgrade_outbox(to={to}, schema="{schema}")

def downgrade() -> None:
    op.downgrade_outbox(schema="{schema}")
"""
NEWEST = migrations()[-1].version


@pytest.fixture
def empty(database: Database) -> Iterator[Database]:
    """A database without an outbox, on the server of the others."""
    fresh = create_database(database.server_url)
    yield fresh
    drop_database(fresh)


def alembic_config(directory: Path, database: Database, driver: str, *, to: int, schema: str = "public") -> Config:
    (directory / "versions").mkdir(parents=True)
    (directory / "env.py").write_text(ENV)
    (directory / "versions" / "first.py").write_text(REVISION.format(to=to, schema=schema))
    config = Config(output_buffer=StringIO())
    config.set_main_option("script_location", str(directory))
    config.set_main_option("path_separator", "os")

    def run(migrate: Any) -> None:
        with create_engine(url_for(database.dsn, driver), poolclass=NullPool).begin() as connection:
            migrate(connection)

    def run_async(migrate: Any) -> None:
        async def main() -> None:
            async with create_async_engine(url_for(database.dsn, driver), poolclass=NullPool).begin() as connection:
                await connection.run_sync(migrate)

        asyncio.run(main())

    config.attributes["run"] = run_async if driver == "asyncpg" else run
    return config


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2", "asyncpg"])
def test_alembic_creates_the_tables_of_schema_sql_and_its_reverse_drops_them(
    driver: str, database: Database, empty: Database, tmp_path: Path
) -> None:
    config = alembic_config(tmp_path / "migrations", empty, driver, to=NEWEST)
    command.upgrade(config, "head")
    with database.connect() as ours, empty.connect() as theirs:
        expected, found = describe(ours, "public"), describe(theirs, "public")
        for part in found:
            assert [row for row in found[part] if "alembic_version" not in str(row)] == expected[part], part
    command.downgrade(config, "base")
    with empty.connect() as connection:
        assert connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall() == [
            ("alembic_version",)
        ]


def test_alembic_skips_migrations_that_are_applied(database: Database, tmp_path: Path) -> None:
    command.upgrade(alembic_config(tmp_path / "migrations", database, "psycopg", to=NEWEST), "head")


def test_alembic_prints_the_scripts_offline_and_refuses_an_unknown_version(empty: Database, tmp_path: Path) -> None:
    config = alembic_config(tmp_path / "offline", empty, "psycopg", to=NEWEST, schema="other")
    command.upgrade(config, "head", sql=True)
    assert isinstance(config.output_buffer, StringIO)
    assert 'CREATE TABLE "other".outbox (' in config.output_buffer.getvalue()
    with pytest.raises(ValueError, match="no migration 9999"):
        command.upgrade(alembic_config(tmp_path / "missing", empty, "psycopg", to=9999), "head")


def test_every_column_of_the_metadata_is_as_in_the_database(database: Database) -> None:
    engine = create_engine(url_for(database.dsn, "psycopg"), poolclass=NullPool)
    tables = outbox_tables(MetaData())
    inspector = inspect(engine)
    assert {table.name for table in tables} == set(inspector.get_table_names())
    for table in tables:
        found = inspector.get_columns(table.name)
        assert [column["name"] for column in found] == [column.name for column in table.columns]
        for real, column in zip(found, table.columns, strict=True):
            assert real["nullable"] == column.nullable, f"{table.name}.{column.name}"
            assert real["type"].compile(engine.dialect) == column.type.compile(engine.dialect), (
                f"{table.name}.{column.name}"
            )
        assert inspector.get_pk_constraint(table.name)["constrained_columns"] == [
            column.name for column in table.primary_key
        ]


def test_autogenerate_proposes_no_table_and_no_column(database: Database) -> None:
    metadata = MetaData()
    outbox_tables(metadata)
    with create_engine(url_for(database.dsn, "psycopg"), poolclass=NullPool).connect() as connection:
        differences = compare_metadata(MigrationContext.configure(connection), metadata)
    # Indexes are only in sql/.
    assert [each for each in differences if each[0] != "remove_index"] == []


def test_the_tables_can_be_queried_in_a_schema_of_their_own(database: Database) -> None:
    tables = outbox_tables(MetaData(), schema="public")
    with create_engine(url_for(database.dsn, "psycopg"), poolclass=NullPool).connect() as connection:
        assert connection.execute(select(tables.outbox.c.event_type)).all() == []
    assert outrider.producer.alembic.UpgradeOutbox(1, "s").reverse().schema == "s"
