"""The schema: migrations and schema.sql agree, constraints have clear names, and any schema name works."""

from __future__ import annotations

import json
import re
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg import sql

from outrider.producer import Outbox
from outrider.storage.message import COLUMN_DEFAULTS, Message
from outrider.storage.sql_files import migrations, script, sql_directory
from outrider.storage.store import Store
from tests.fixtures.database import Database

WEIRD = 'we"ird %s'

# All that the catalog holds about a schema, without its name. The positions of columns are compared too.
CATALOG = {
    "columns": """
        SELECT c.relname, a.attnum, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity,
               a.attgenerated, a.attstorage, a.attcompression, a.attcollation::regcollation::text,
               pg_get_expr(d.adbin, d.adrelid)
          FROM pg_attribute AS a JOIN pg_class AS c ON c.oid = a.attrelid
          LEFT JOIN pg_attrdef AS d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
         WHERE c.relnamespace = to_regnamespace(%s) AND c.relkind = 'r' AND a.attnum > 0 AND NOT a.attisdropped
         ORDER BY 1, 2""",
    "constraints": """
        SELECT c.relname, k.conname, k.contype, k.convalidated, pg_get_constraintdef(k.oid)
          FROM pg_constraint AS k JOIN pg_class AS c ON c.oid = k.conrelid
         WHERE k.connamespace = to_regnamespace(%s) ORDER BY 1, 2""",
    "indexes": """
        SELECT tablename, indexname, replace(indexdef, quote_ident(schemaname) || '.', '')
          FROM pg_indexes WHERE quote_ident(schemaname)::regnamespace = to_regnamespace(%s) ORDER BY 1, 2""",
    "storage": """
        SELECT c.relname, c.relkind, c.reloptions, c.relpersistence, c.relreplident, t.reloptions
          FROM pg_class AS c LEFT JOIN pg_class AS t ON t.oid = c.reltoastrelid
         WHERE c.relnamespace = to_regnamespace(%s) ORDER BY 1""",
    "others": """
        SELECT p.proname FROM pg_proc AS p WHERE p.pronamespace = to_regnamespace(%s)
        UNION ALL
        SELECT g.tgname FROM pg_trigger AS g JOIN pg_class AS c ON c.oid = g.tgrelid
         WHERE c.relnamespace = to_regnamespace(%s)""",
}


def describe(connection: psycopg.Connection[Any], schema: str) -> dict[str, list[Any]]:
    quoted = sql.Identifier(schema).as_string(connection)
    found = {
        part: connection.execute(query, [quoted] * query.count("%s")).fetchall() for part, query in CATALOG.items()
    }
    recorded = sql.SQL("SELECT version, name FROM {}.outbox_migration ORDER BY 1").format(sql.Identifier(schema))
    return {**found, "migrations": connection.execute(recorded).fetchall()}


def test_schema_sql_and_the_replayed_migrations_give_the_same_database(database: Database) -> None:
    with database.connect() as connection:
        connection.execute(script("schema.sql", schema="from_schema"))
        for migration in migrations():
            connection.execute(script(migration.path, schema="from_migrations"))
        expected, migrated = describe(connection, "from_schema"), describe(connection, "from_migrations")
    assert len(expected["columns"]) > 50
    assert len(expected["indexes"]) > 5
    for part in expected:
        assert expected[part] == migrated[part], part


def test_the_comparison_detects_a_difference(database: Database) -> None:
    with database.connect() as connection:
        connection.execute(script("schema.sql", schema="a"))
        connection.execute(script("schema.sql", schema="b"))
        before = describe(connection, "b")
        assert describe(connection, "a") == before
        connection.execute("ALTER TABLE b.outbox SET (fillfactor = 90)")
        connection.execute("ALTER TABLE b.outbox ALTER COLUMN attempts SET DEFAULT 1")
        after = describe(connection, "b")
    assert {part for part in before if before[part] != after[part]} == {"storage", "columns"}


@pytest.mark.parametrize(
    ("column", "value", "constraint"),
    [
        ("event_type", "", "event_type must not be empty"),
        ("routing_key", "ü" * 128, "routing_key must be at most 255 bytes"),
        ("exchange", "x" * 256, "exchange must be at most 255 bytes"),
        ("ordering_key", "", "ordering_key must be 1 to 1000 bytes"),
        ("dedup_key", "x" * 1001, "dedup_key must be 1 to 1000 bytes"),
        ("headers", "[]", "headers must be a JSON object"),
        ("properties", "1", "properties must be a JSON object"),
        ("declarations", "{}", "declarations must be a JSON array"),
        ("context", "[]", "context must be a JSON object"),
        ("attempts", -1, "attempts must not be negative"),
        ("owner", "nobody", "owner must be relay or scheduler"),
        ("created_at", "-infinity", "times must lie in the years 1 to 9999"),
        ("expires_at", "infinity", "times must lie in the years 1 to 9999"),
        ("next_attempt_at", "-infinity", "times must lie in the years 1 to 9999"),
    ],
)
def test_a_constraint_says_what_is_wrong(database: Database, column: str, value: object, constraint: str) -> None:
    row = {"event_type": "order.placed", "routing_key": "orders", "payload": b"{}", column: value}
    statement = sql.SQL("INSERT INTO outbox ({}) VALUES ({})").format(
        sql.SQL(", ").join(map(sql.Identifier, row)), sql.SQL(", ").join(map(sql.Placeholder, row))
    )
    with database.connect() as connection, pytest.raises(psycopg.errors.CheckViolation) as error:
        connection.execute(statement, row)
    assert error.value.diag.constraint_name == constraint


def test_the_planner_accepts_every_query(database: Database) -> None:
    """Names and types are right in every query, also in those that no other test runs."""
    text = "".join(file.read_text() for file in (sql_directory() / "queries").glob("*.sql"))
    fragments = set(re.findall(r"(?<![:\w]):([a-z]\w*)", text))
    with database.connect() as connection:
        queries = Store(connection, "public").queries
        for name in queries.keys() - fragments:
            if queries[name].startswith("COPY"):  # has no plan; tests/integration/test_producer_copy.py runs it
                continue
            parameters = dict.fromkeys(re.findall(r"%\((\w+)\)s", queries[name]))
            text = psycopg.ClientCursor(connection).mogrify(queries[name], parameters)
            connection.execute("EXPLAIN " + text)


def test_a_column_that_wal_can_lack_has_the_value_that_the_schema_gives_to_existing_rows(database: Database) -> None:
    """A constant default, or null. A volatile default gives each row another value."""
    with database.connect() as connection:
        columns = connection.execute(
            "SELECT column_name, data_type, is_nullable = 'YES', column_default FROM information_schema.columns "
            "WHERE table_name = 'outbox' AND table_schema = 'public' AND is_identity = 'NO'"
        ).fetchall()
        expected: dict[str, object] = {}
        for name, data_type, nullable, default in columns:
            if name in Message._fields and (nullable or (default is not None and "(" not in default)):
                row = connection.execute(f"SELECT ({default or 'NULL'})::{data_type}").fetchone()
                assert row is not None
                expected[name] = json.dumps(row[0]) if data_type == "json" and row[0] is not None else row[0]
    assert dict(COLUMN_DEFAULTS) == expected


def test_the_message_columns_give_a_message_back(database: Database) -> None:
    with database.connect() as connection, connection.transaction():
        receipt = Outbox("shop").publish(
            connection, "order.placed", {"n": 1}, aggregate=("order", 7), headers={"h": "v"}, routing_key="orders"
        )
    with database.connect() as connection:
        store = Store(connection, "public")
        assert store.hand_over_all() == 1
        (message,), parked = store.claim_due("me", batch_size=10, lease_seconds=60)
    assert parked == 0
    assert UUID(message.event_id) == receipt.event_id
    assert (message.event_type, message.exchange, message.routing_key) == ("order.placed", "shop", "orders")
    assert (message.aggregate_type, message.aggregate_id) == ("order", "7")
    assert json.loads(message.payload) == {"n": 1}
    assert json.loads(message.headers)["h"] == "v"
    assert (message.attempts, message.owner, message.expires_at) == (0, "scheduler", None)
    assert message.next_attempt_at - message.created_at > 59_000_000


def test_a_schema_with_quotes_and_percent_signs_is_a_schema_like_any_other(database: Database) -> None:
    with database.connect() as connection:
        connection.execute(script("schema.sql", schema=WEIRD))
        store = Store(connection, WEIRD)
        with connection.transaction():
            Outbox("", schema=WEIRD).publish(connection, "a%s", {"n": 1}, routing_key="q", ordering_key="k%%")
        assert store.hand_over_all() == 1
        claimed, _ = store.claim_due("me", batch_size=10, lease_seconds=60)
        assert [message.event_type for message in claimed] == ["a%s"]
        assert store.settle([claimed[0].id], claim="me", archive=True) == [claimed[0].id]
        assert list(store.keys_in_table()) == []
        assert Store(connection, "public").next_due() is None
