"""publish_many on psycopg 3 uses COPY where possible; the rows are the same."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest

from outrider import Event, Outbox
from outrider.storage.sql_files import Queries
from tests.fixtures.database import Database

COLUMNS = Queries("public")["enqueued_columns"]

MESSAGES: dict[str, dict[str, Any]] = {
    "plain": {"payload": {"n": 1}},
    "bytes": {"payload": bytes(range(256))},
    "what COPY escapes": {"payload": "\t\n\r\\ \\N \\.", "routing_key": "a\tb\\N", "headers": {"x": "\n\\.\n\t"}},
    "nothing": {"payload": b"", "routing_key": "", "exchange": ""},
    "an aggregate": {"payload": {}, "aggregate": ("order", "4\t2")},
    "letters": {"payload": {"name": "Käthe"}, "routing_key": "straße", "headers": {"ort": "Österreich"}},
}


def last_statement(database: Database, connection: psycopg.Connection[Any]) -> str:
    with database.connect() as other:
        row = other.execute(
            "SELECT query FROM pg_stat_activity WHERE pid = %s", [connection.info.backend_pid]
        ).fetchone()
    assert row is not None
    return str(row[0])


@pytest.mark.parametrize("client_encoding", ["UTF8", "LATIN1"])
def test_copied_rows_equal_those_of_single_publishes(database: Database, client_encoding: str) -> None:
    messages = [{"event_type": name, **fields} for name, fields in MESSAGES.items()]
    outbox = Outbox("shop")
    with psycopg.connect(database.dsn, client_encoding=client_encoding) as connection:
        singly = [outbox.publish(connection, **message).event_id for message in messages]
        receipt = outbox.publish_many(connection, [Event(**message) for message in messages])
        assert last_statement(database, connection).startswith("COPY")
        assert receipt.written == len(messages)
        columns = COLUMNS.replace("headers", "(headers::jsonb - 'tracking_ids')::text").replace("event_id, ", "")
        rows = connection.execute(f"SELECT {columns}, owner, attempts FROM outbox ORDER BY id").fetchall()
        event_ids = connection.execute("SELECT event_id FROM outbox ORDER BY id").fetchall()
    assert rows[: len(messages)] == rows[len(messages) :]
    assert [row[0] for row in event_ids] == [*singly, *receipt.event_ids]


@pytest.mark.parametrize(
    "fields",
    [{"dedup_key": "k"}, {"expires": 60}, {"expires": datetime(2100, 1, 1, tzinfo=UTC)}, {"deliver_after": 60}],
    ids=["a dedup_key", "an expiry from now", "an expiry", "a delay"],
)
def test_rows_that_copy_cannot_write_are_inserted(database: Database, fields: dict[str, Any]) -> None:
    with psycopg.connect(database.dsn) as connection:
        messages = [{"event_type": "a", "payload": {}}, {"event_type": "b", "payload": {}, **fields}]
        assert Outbox().publish_many(connection, messages).written == 2
        assert last_statement(database, connection).startswith("INSERT")


def test_an_error_of_the_database_is_raised_and_nothing_is_written(database: Database) -> None:
    with psycopg.connect(database.dsn) as connection:
        row = Event(event_type="a", payload={}).row(exchange="")
        with pytest.raises(psycopg.errors.CheckViolation, match="headers must be a JSON object"):
            Outbox().write_rows(connection, [row, {**row, "headers": "[]"}])
        connection.rollback()
        assert connection.execute("SELECT count(*) FROM outbox").fetchone() == (0,)


def test_an_empty_batch_runs_no_statement(database: Database) -> None:
    with psycopg.connect(database.dsn) as connection:
        assert Outbox().publish_many(connection, []) == ([], 0)
        assert connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
