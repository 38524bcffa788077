"""A task's INSERT is not waited for, and yet nobody gets past one that failed: Django on psycopg 3."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from outrider.producer.celery import TaskOutbox
from tests.fixtures.database import Database
from tests.fixtures.django import django_connection
from tests.fixtures.notes import Undo, a_task, committed, is_in_flight
from tests.fixtures.waiting import wait_for


@contextmanager
def in_django(database: Database, **options: Any) -> Iterator[tuple[Any, Any]]:
    """Django's connection, and a task that is captured in its transactions."""
    from django.test import override_settings

    with django_connection(database.dsn) as connection, override_settings(DEBUG=False):
        yield connection, a_task(TaskOutbox(django="default", **options))


def test_django_commits_what_was_called_in_the_block(database: Database) -> None:
    from django.db import transaction

    with in_django(database) as (connection, note):
        for _ in range(2):
            with transaction.atomic():
                note.delay("begins the transaction")
                note.delay("is not waited for")
                assert is_in_flight(connection.connection)
            assert not is_in_flight(connection.connection)
            assert connection.get_autocommit()
    assert committed(database) == ["begins the transaction", "is not waited for"] * 2


def test_django_rolls_back_what_was_called_in_a_block_that_fails(database: Database) -> None:
    from django.db import transaction

    with in_django(database) as (connection, note), transaction.atomic():
        note.delay("a")
        with suppress(Undo), transaction.atomic():
            note.delay("b")
            raise Undo
        with transaction.atomic():
            note.delay("c")
        with suppress(Undo), transaction.atomic(savepoint=False):
            note.delay("d")
        assert is_in_flight(connection.connection)
    assert committed(database) == ["a", "c", "d"]


def test_in_django_the_innermost_block_ends_with_djangos_error(database: Database) -> None:
    from django.db import ProgrammingError, transaction

    with in_django(database) as (connection, note):
        astray = a_task(TaskOutbox(django="default", schema="nowhere"))
        with transaction.atomic():
            note.delay("outside")
            with pytest.raises(ProgrammingError, match="nowhere"), transaction.atomic():
                astray.delay("inside")
            note.delay("after")
        with suppress(ProgrammingError), transaction.atomic():
            note.delay("lost")
            astray.delay("lost")
        with suppress(Undo), transaction.atomic():
            note.delay("undone")
            astray.delay("undone")
            raise Undo
        assert connection.is_usable()
        assert connection.get_autocommit()
    assert committed(database) == ["outside", "after"]


def test_django_reads_through_a_server_side_cursor_after_a_call(database: Database) -> None:
    from django.db import transaction

    with in_django(database) as (connection, note), transaction.atomic():
        note.delay("first")
        note.delay("second")
        with connection.chunked_cursor() as cursor:
            cursor.execute("SELECT count(*) FROM outbox")
            assert cursor.fetchall() == [(2,)]
    assert committed(database) == ["first", "second"]


def test_in_django_a_hook_runs_only_if_the_transaction_was_committed(database: Database) -> None:
    from django.db import DatabaseError, ProgrammingError, transaction

    ran: list[str] = []
    with in_django(database) as (connection, note):
        astray = a_task(TaskOutbox(django="default", schema="nowhere"))
        with pytest.raises(ProgrammingError, match="nowhere"), transaction.atomic():  # noqa: PT012
            note.delay("good")
            transaction.on_commit(lambda: ran.append("hook"))
            astray.delay("bad")
            with suppress(DatabaseError), transaction.atomic():
                note.delay("good too")
            assert not connection.is_usable()
        assert ran == []
        with transaction.atomic():
            note.delay("afterwards")
    assert committed(database) == ["afterwards"]


def test_a_wrapper_of_djangos_may_call_a_task_itself(database: Database) -> None:
    from django.db import transaction

    with in_django(database) as (connection, note):

        def audit(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
            if "INSERT" in sql and connection.execute_wrappers:
                connection.execute_wrappers.clear()
                note.delay("audit")
                connection.execute_wrappers.append(audit)
            result = execute(sql, params, many, context)
            assert context["cursor"].rowcount in (-1, 1)
            return result

        with transaction.atomic():
            connection.cursor().execute("SELECT 1")
            connection.execute_wrappers.append(audit)
            note.delay("first")
            note.delay("second")
            connection.execute_wrappers.clear()
    assert committed(database) == ["audit", "first", "audit", "second"]


def test_djangos_wrappers_see_a_statement_and_may_change_its_text(database: Database) -> None:
    from django.db import transaction

    seen: list[str] = []

    def comment(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        seen.append(sql)
        return execute(f"/* 100%% ours */ {sql}", params, many, context)

    with (
        in_django(database) as (connection, note),
        database.connect() as other,
        connection.execute_wrapper(comment),
        transaction.atomic(),
    ):
        note.delay("first")
        note.delay("second")
        assert is_in_flight(connection.connection)
        assert len([sql for sql in seen if "INSERT" in sql]) == 2
        pid = connection.connection.info.backend_pid

        def is_shown() -> bool:
            row = other.execute("SELECT query FROM pg_stat_activity WHERE pid = %s", [pid]).fetchone()
            return row is not None and row[0].startswith("/* 100% ours */ INSERT") and "$1" in row[0]

        wait_for(is_shown)
    assert committed(database) == ["first", "second"]


def test_where_django_logs_its_queries_calls_are_logged_and_waited_for(database: Database) -> None:
    from django.db import transaction
    from django.test.utils import CaptureQueriesContext

    with in_django(database) as (connection, note), transaction.atomic():
        connection.cursor().execute("SELECT 1")
        with CaptureQueriesContext(connection) as queries:
            note.delay("first")
            assert not is_in_flight(connection.connection)
        assert ["INSERT" in query["sql"] for query in queries] == [True]
    assert committed(database) == ["first"]


def test_where_somebody_else_makes_djangos_cursors_calls_are_waited_for(database: Database) -> None:
    from django.db import transaction

    with in_django(database) as (connection, note), transaction.atomic():
        connection.cursor().execute("SELECT 1")
        statements: list[str] = []

        class Traced(connection.connection.cursor_factory):  # type: ignore[misc,name-defined]
            def execute(self, query: Any, *args: Any, **kwargs: Any) -> Any:
                statements.append(query)
                return super().execute(query, *args, **kwargs)

        connection.connection.cursor_factory = Traced
        note.delay("first")
        assert not is_in_flight(connection.connection)
        assert ["INSERT" in statement for statement in statements] == [True]
    assert committed(database) == ["first"]
