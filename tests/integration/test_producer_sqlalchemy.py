"""SQLAlchemy's metadata and Alembic's operations agree with sql/."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, MetaData, create_engine, select
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

import outrider.producer.alembic
from outrider import Outbox
from outrider.errors import SetupError
from outrider.producer.sqlalchemy import ensure_outbox, ensure_outbox_async, outbox_tables
from outrider.storage.sql_files import migrations
from tests.fixtures.commands import ROOT, environment
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
MODELS = """
from sqlalchemy import Column, Integer, MetaData, Table
from outrider.producer.sqlalchemy import outbox_tables

metadata = MetaData()
outbox_tables(metadata)
Table("orders", metadata, Column("id", Integer, primary_key=True))
"""
NAMING_CONVENTION = {
    "ix": "ix_%(column_0_label)s",
    "uq": "uq_%(table_name)s_%(column_0_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "pk": "pk_%(table_name)s",
}
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


@contextmanager
def connected(database: Database, **options: Any) -> Iterator[Connection]:
    with create_engine(url_for(database.dsn, "psycopg"), poolclass=NullPool, **options).connect() as connection:
        yield connection


def assert_equal_schemas(expected: Database, found: Database, *, ignore: str = "alembic_version") -> None:
    with expected.connect() as ours, found.connect() as theirs:
        one, other = describe(ours, "public"), describe(theirs, "public")
    for part in one:
        assert [row for row in other[part] if ignore not in str(row)] == one[part], part


@pytest.mark.parametrize("convention", [False, True], ids=["no naming convention", "a naming convention"])
def test_the_metadata_creates_exactly_what_the_migrations_create(
    convention: bool, database: Database, empty: Database
) -> None:
    """Columns, their order and defaults, constraints, indexes, storage parameters, applied migrations."""
    metadata = MetaData(naming_convention=NAMING_CONVENTION if convention else None)
    outbox_tables(metadata)
    with connected(empty) as connection, connection.begin():
        metadata.create_all(connection)
    assert_equal_schemas(database, empty)


def test_a_dedup_key_inserts_one_row_in_a_database_that_the_metadata_created(empty: Database) -> None:
    metadata = MetaData()
    outbox_tables(metadata)
    with connected(empty) as connection, connection.begin():
        metadata.create_all(connection)
        published = [Outbox().publish(connection, "a", {}, dedup_key="same").new for _ in range(3)]
    assert published == [True, False, False]
    with empty.connect() as reader:
        assert reader.execute("SELECT count(*) FROM outbox").fetchall() == [(1,)]


class Project:
    """A project as `alembic init` generates it, and the real command in it."""

    def __init__(
        self, directory: Path, database: Database, *, settings: str = "", with_operations: bool = True
    ) -> None:
        self.directory = directory
        directory.mkdir()
        self.alembic("init", "migrations")
        ini = directory / "alembic.ini"
        text = re.sub(
            r"(?m)^sqlalchemy.url = .*$", f"sqlalchemy.url = {url_for(database.dsn, 'psycopg')}", ini.read_text()
        )
        ini.write_text(text)
        (directory / "app.py").write_text(MODELS)
        environment = directory / "migrations" / "env.py"
        text = environment.read_text().replace("target_metadata = None", "from app import metadata as target_metadata")
        text = text.replace("connection=connection,", f"connection=connection, {settings}")
        environment.write_text(("import outrider.producer.alembic\n" if with_operations else "") + text)

    def alembic(self, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "alembic", *arguments],
            check=False,
            cwd=self.directory,
            env={**environment(), "PYTHONPATH": f"{ROOT}{os.pathsep}{self.directory}"},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def autogenerate(self, name: str) -> tuple[str, str]:
        """The bodies of upgrade() and downgrade() that `alembic revision --autogenerate` writes."""
        self.alembic("revision", "--autogenerate", "-m", name)
        [written] = (self.directory / "migrations" / "versions").glob(f"*_{name}.py")
        _, upgrade, downgrade = re.split(r"(?m)^def \w+\(\) -> None:$", written.read_text())
        return statements(upgrade), statements(downgrade)


def statements(body: str) -> str:
    lines = (line.strip() for line in body.splitlines())
    return "\n".join(line for line in lines if line and not line.startswith(("#", '"""')))


STRICT = "compare_server_default=True, compare_type=True,"


@pytest.mark.parametrize("with_operations", [True, False], ids=["with the operations", "with the metadata alone"])
def test_autogenerate_finds_nothing_in_a_database_that_is_set_up(
    with_operations: bool, database: Database, tmp_path: Path
) -> None:
    project = Project(tmp_path / "project", database, settings=STRICT, with_operations=with_operations)
    upgrade, downgrade = project.autogenerate("first")
    assert "op.create_table('orders'" in upgrade
    assert "outbox" not in upgrade + downgrade
    project.alembic("upgrade", "head")
    assert project.autogenerate("second") == ("pass", "pass")


def test_autogenerate_creates_an_outbox_with_its_migrations_and_then_finds_nothing(
    database: Database, empty: Database, tmp_path: Path
) -> None:
    project = Project(tmp_path / "project", empty, settings=STRICT)
    upgrade, downgrade = project.autogenerate("first")
    assert f"op.upgrade_outbox(to={NEWEST})" in upgrade
    assert "op.downgrade_outbox()" in downgrade
    assert "op.create_table('outbox" not in upgrade
    project.alembic("upgrade", "head")
    assert project.autogenerate("second") == ("pass", "pass")
    with empty.connect() as connection:
        connection.execute("DROP TABLE orders")
    assert_equal_schemas(database, empty)
    with empty.connect() as connection:
        connection.execute("CREATE TABLE orders (id integer PRIMARY KEY)")
    project.alembic("downgrade", "base")


def test_autogenerate_without_the_operations_creates_a_complete_outbox_too(empty: Database, tmp_path: Path) -> None:
    project = Project(tmp_path / "project", empty, settings=STRICT, with_operations=False)
    project.autogenerate("first")
    project.alembic("upgrade", "head")
    assert project.autogenerate("second") == ("pass", "pass")
    with connected(empty) as connection, connection.begin():
        assert [Outbox().publish(connection, "a", {}, dedup_key="k").new for _ in range(3)] == [True, False, False]


def test_autogenerate_notices_an_index_that_is_missing(database: Database, tmp_path: Path) -> None:
    with database.connect() as connection:
        connection.execute("DROP INDEX outbox_dedup")
    upgrade, _ = Project(tmp_path / "project", database).autogenerate("first")
    assert "'outbox_dedup'), 'outbox', ['dedup_key'], unique=True" in upgrade


def test_a_reversed_upgrade_of_later_migrations_keeps_the_tables() -> None:
    later = outrider.producer.alembic.UpgradeOutbox(3, "s", since=2).reverse()
    assert isinstance(later, outrider.producer.alembic.UpgradeOutbox)
    assert (later.to, later.schema) == (2, "s")


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
def test_an_application_creates_its_outbox_at_start(driver: str, database: Database, empty: Database) -> None:
    engine = create_engine(url_for(empty.dsn, driver), poolclass=NullPool)
    with suppress(RuntimeError), engine.begin() as connection:
        ensure_outbox(connection)
        raise RuntimeError("the start fails: nothing may be left behind")
    with engine.begin() as connection:
        assert ensure_outbox(connection) == [migration.version for migration in migrations()]
    with Session(engine) as session, session.begin():
        assert ensure_outbox(session) == []
    assert_equal_schemas(database, empty)


def test_an_asynchronous_application_creates_its_outbox_in_a_schema_of_its_own(empty: Database) -> None:
    async def main() -> list[list[int]]:
        engine = create_async_engine(url_for(empty.dsn, "asyncpg"), poolclass=NullPool)
        async with engine.begin() as connection:
            first = await ensure_outbox_async(connection, schema="shop")
        async with AsyncSession(engine) as session, session.begin():
            return [first, await ensure_outbox_async(session, schema="shop")]

    first, second = asyncio.run(main())
    assert (first[-1], second) == (NEWEST, [])
    with empty.connect() as connection:
        assert connection.execute("SELECT to_regclass('shop.outbox')::text").fetchall() == [("shop.outbox",)]


def test_processes_that_start_at_once_create_one_outbox(empty: Database) -> None:
    text = (
        "import sys; from sqlalchemy import create_engine; from outrider.producer.sqlalchemy import ensure_outbox\n"
        "engine = create_engine(sys.argv[1])\n"
        "sys.stdin.readline()\n"
        "with engine.begin() as connection: print(ensure_outbox(connection))\n"
    )
    started = [
        subprocess.Popen(
            [sys.executable, "-c", text, url_for(empty.dsn, "psycopg")],
            cwd=ROOT,
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    for process in started:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    ended = [(process.communicate(timeout=60), process.returncode) for process in started]
    assert [code for _, code in ended] == [0] * 4, ended
    every = str([migration.version for migration in migrations()])
    assert sorted(out.strip() for (out, _), _ in ended) == sorted([every, "[]", "[]", "[]"])


def test_an_outbox_is_not_created_in_autocommit(empty: Database) -> None:
    with connected(empty, isolation_level="AUTOCOMMIT") as connection, pytest.raises(SetupError, match="autocommit"):
        ensure_outbox(connection)


def test_the_tables_can_be_queried_in_a_schema_of_their_own(database: Database) -> None:
    tables = outbox_tables(MetaData(), schema="public")
    with create_engine(url_for(database.dsn, "psycopg"), poolclass=NullPool).connect() as connection:
        assert connection.execute(select(tables.outbox.c.event_type)).all() == []
    reverse = outrider.producer.alembic.UpgradeOutbox(1, "s").reverse()
    assert isinstance(reverse, outrider.producer.alembic.DowngradeOutbox)
    assert reverse.schema == "s"
