"""
The plans of the services' queries at 100,000 rows: they use indexes, and do not read rows that are not due.

Plans are checked with and without statistics, and as generic plans of prepared statements: the scheduler must not
depend on the time of the last ANALYZE. Costs are compared in pages read, which do not depend on the machine.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any, LiteralString

import psycopg
import pytest

from outrider.storage.service_queries import RUN_LENGTH
from outrider.storage.sql_files import Queries
from tests.fixtures.database import Database
from tests.fixtures.rows import insert_rows, scratch_database

ROWS = 100_000
QUERIES = Queries("public")
IDS = list(range(1000, 1500))
CLAIM: dict[str, Any] = {
    "claim": "s/1",
    "batch_size": 500,
    "batch_bytes": 16 * 1024 * 1024,
    "lease": timedelta(seconds=60),
}
HOT_PATH: Mapping[str, dict[str, Any]] = {
    "claim_due": CLAIM,
    "next_due": {},
    "settle": {"ids": IDS, "claim": "s/1", "run_length": RUN_LENGTH},
    "settle_unfollowed": {"ids": IDS, "claim": None},
    "owners": {"ids": IDS, "xids": IDS},
    "settle_to_archive": {"ids": IDS, "claim": "s/1", "run_length": RUN_LENGTH},
    "fail": {"ids": IDS, "errors": ["no"] * 500, "backoff_seconds": [1.0] * 500, "claim": "s/1"},
    "bury": {
        "ids": IDS,
        "reasons": ["rejected"] * 500,
        "errors": ["no"] * 500,
        "spent": [1] * 500,
        "claim": "s/1",
        "run_length": RUN_LENGTH,
    },
    "defer": {"ids": IDS, "claim": "s/1", "cooldown": timedelta(seconds=30)},
    "release": {"ids": IDS, "claim": "s/1"},
    "unpark_heads": {},
    "keys_in_table": {"after": "j5", "at_once": 1000},
    "keys_without_rows": {"keys": [f"j{n}" for n in range(500)]},
    "free_keys": {"keys": [f"j{n}" for n in range(500)], "ids": [ROWS * 3 // 4 + n for n in range(500)]},
    "expire": {"batch_size": 1000, "run_length": RUN_LENGTH},
    "sample": {"most": 1000},
    "prune_archive": {"retention": timedelta(days=1), "batch_size": 1000},
    "prune_dead_letters": {"retention": timedelta(days=1), "batch_size": 1000},
}


@pytest.fixture(scope="module")
def large_database(template_database: Database) -> Iterator[Database]:
    """Half of the rows are due, a tenth is parked, a quarter has a key, some can expire."""
    with scratch_database(template_database) as database:
        with database.connect() as connection:
            connection.execute("ALTER TABLE outbox SET (autovacuum_enabled = off)")
            insert_rows(connection, ROWS // 4, due_in="-1 hour")
            insert_rows(connection, ROWS // 4, due_in="-1 hour", ordering_key="k{n}")
            insert_rows(connection, ROWS // 4, due_in="1 hour")
            insert_rows(connection, ROWS // 4, due_in="1 hour", ordering_key="j{n}")
            connection.execute("UPDATE outbox SET claimed_by = 's/1' WHERE id BETWEEN 1000 AND 1999")
            connection.execute(
                "UPDATE outbox SET next_attempt_at = 'infinity' WHERE ordering_key IS NOT NULL AND id % 5 = 0"
            )
            connection.execute(
                "UPDATE outbox SET expires_at = next_attempt_at WHERE id % 7 = 0 AND isfinite(next_attempt_at)"
            )
        yield database


@pytest.fixture
def large(large_database: Database) -> Iterator[psycopg.Connection[Any]]:
    """In a transaction that is rolled back."""
    with large_database.connect(autocommit=False) as connection:
        yield connection
        connection.rollback()


def explain(
    connection: psycopg.Connection[Any], query: str, parameters: Mapping[str, Any], options: LiteralString = ""
) -> dict[str, Any]:
    cursor = connection.execute(f"EXPLAIN (FORMAT JSON{options}) {QUERIES[query]}", parameters)
    row = cursor.fetchone()
    assert row is not None
    plan: dict[str, Any] = (row[0] if isinstance(row[0], list) else json.loads(row[0]))[0]["Plan"]
    return plan


def explain_generic(connection: psycopg.Connection[Any], query: str) -> dict[str, Any]:
    """The plan for unknown parameters. The placeholders go to the server as $1, $2, ..., without psycopg."""
    names: list[str] = []

    def number(match: re.Match[str]) -> str:
        if match[1] not in names:
            names.append(match[1])
        return f"${names.index(match[1]) + 1}"

    text = re.sub(r"%\((\w+)\)s", number, QUERIES[query]).replace("%%", "%")
    result = connection.pgconn.exec_(f"EXPLAIN (GENERIC_PLAN, FORMAT JSON) {text}".encode())
    value = result.get_value(0, 0)
    assert value is not None, f"{query}: {result.error_message.decode()}"
    plan: dict[str, Any] = json.loads(value)[0]["Plan"]
    return plan


def nodes(plan: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from nodes(child)


def queries_with_sequential_scans(
    connection: psycopg.Connection[Any], *, generic: bool = False
) -> dict[str, list[str]]:
    """The queries that read all of the outbox. The other tables are empty here, and may be scanned."""
    found = {}
    for query, parameters in HOT_PATH.items():
        plan = explain_generic(connection, query) if generic else explain(connection, query, parameters)
        scanned = [node for node in nodes(plan) if node["Node Type"] == "Seq Scan"]
        if aliases := [node["Alias"] for node in scanned if node["Relation Name"] == "outbox"]:
            found[query] = aliases
    return found


def pages(connection: psycopg.Connection[Any], query: str, parameters: Mapping[str, Any]) -> int:
    """The number of pages that the query reads."""
    plan = explain(connection, query, parameters, ", ANALYZE, BUFFERS, TIMING OFF")
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


def test_due_rows_and_heads_of_keys_are_found_by_indexes_before_the_first_analyze(
    large: psycopg.Connection[Any],
) -> None:
    found = queries_with_sequential_scans(large)
    # For rows given by their ids the planner may choose a scan until the first ANALYZE, or until the statement is
    # prepared: it costs about as much as this many look-ups.
    by_ids = {"settle", "settle_unfollowed", "settle_to_archive", "fail", "bury", "defer", "release"}
    assert not found.keys() - by_ids


def test_the_services_queries_use_indexes(large: psycopg.Connection[Any]) -> None:
    large.execute("ANALYZE outbox")
    assert queries_with_sequential_scans(large) == {}


def test_prepared_statements_use_indexes_whatever_their_parameters(large: psycopg.Connection[Any]) -> None:
    if large.info.server_version < 160_000:
        pytest.skip("EXPLAIN (GENERIC_PLAN) needs PostgreSQL 16")
    large.execute("ANALYZE outbox")
    assert queries_with_sequential_scans(large, generic=True) == {}


def test_the_due_rows_are_found_by_an_index_condition_and_not_by_a_filter(large: psycopg.Connection[Any]) -> None:
    scans = [
        node
        for node in nodes(explain(large, "claim_due", CLAIM))
        if node.get("Index Name") == "outbox_due" and "next_attempt_at" in node.get("Index Cond", "")
    ]
    assert scans


def test_claiming_from_many_rows_costs_what_claiming_from_few_costs(
    large: psycopg.Connection[Any], database: Database
) -> None:
    with database.connect() as connection:
        insert_rows(connection, 500, due_in="-1 hour")
        few = pages(connection, "claim_due", CLAIM)
    many = pages(large, "claim_due", CLAIM)
    # The indexes have about one more level. Reading all rows would be hundreds of times as many pages.
    assert many < few * 2, f"{few} pages with 500 rows, {many} with {ROWS:,}"


def test_the_relays_questions_about_keys_cost_a_few_pages_per_key_however_many_keys_there_are(
    large: psycopg.Connection[Any],
) -> None:
    for name in ("keys_in_table", "keys_without_rows", "free_keys"):
        parameters = HOT_PATH[name]
        asked = parameters.get("at_once") or len(parameters["keys"])
        assert pages(large, name, parameters) < asked * 10, name


def test_a_long_key_behind_a_failed_head_costs_the_claims_of_others_nothing(database: Database) -> None:
    with database.connect() as connection:
        few = _claim_and_settle_others(connection)
        insert_rows(connection, 1, due_in="1 hour", ordering_key="hot", attempts=1)
        insert_rows(connection, ROWS, due_in="infinity", ordering_key="hot", owner="scheduler")
        many = _claim_and_settle_others(connection)
        sweep = pages(connection, "unpark_heads", {})
    assert many < few * 2, f"{few} pages without the long key, {many} with it"
    assert sweep < 50


def _claim_and_settle_others(connection: psycopg.Connection[Any]) -> int:
    """Pages read to claim and settle 100 rows of other keys; the batch has room for more."""
    ids = insert_rows(connection, 100, ordering_key="other{n}")
    touched = pages(connection, "claim_due", CLAIM)
    touched += pages(connection, "next_due", HOT_PATH["next_due"])
    touched += pages(connection, "settle", {"ids": ids, "claim": "s/1", "run_length": RUN_LENGTH})
    remaining = connection.execute("SELECT count(*) FROM outbox WHERE ordering_key LIKE 'other%'").fetchone()
    assert remaining == (0,)
    return touched
