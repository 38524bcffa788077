"""A task's INSERT is not waited for, and yet nobody gets past one that failed: psycopg 3, and Django on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
import pytest
from psycopg.pq import TransactionStatus

from producer.celery import OutboxCelery, TaskOutbox
from tests.fixtures.database import Database
from tests.fixtures.django import django_connection
from tests.fixtures.waiting import wait_for


class Undo(Exception):
    pass


def a_task(outbox: TaskOutbox) -> Any:
    app = OutboxCelery("tests", broker="memory://", set_as_current=False, outbox=outbox)

    @app.task(name="tests.note", shared=False)  # type: ignore[untyped-decorator]
    def note(text: str) -> None:
        """Nobody runs it."""

    return note


def texts(connection: Any) -> list[str]:
    found = connection.execute("SELECT convert_from(payload, 'UTF8')::json->0->>0 FROM outbox ORDER BY id").fetchall()
    return [row[0] for row in found]


def committed(database: Database) -> list[str]:
    with database.connect() as connection:
        return texts(connection)


@contextmanager
def begun(database: Database, **options: Any) -> Iterator[tuple[psycopg.Connection[Any], Any]]:
    """A connection in a transaction, and a task that is captured in it."""
    outbox = TaskOutbox(**options)
    with psycopg.connect(database.dsn) as connection, outbox.session(connection):
        connection.execute("SELECT 1")
        yield connection, a_task(outbox)


@contextmanager
def locked(database: Database) -> Iterator[None]:
    """Nobody can insert inside the block."""
    with database.connect(autocommit=False) as connection:
        connection.execute("SET lock_timeout = '10s'")
        connection.execute("LOCK TABLE outbox IN ACCESS EXCLUSIVE MODE")
        yield
        connection.rollback()


def is_in_flight(connection: psycopg.Connection[Any]) -> bool:
    return connection.info.transaction_status == TransactionStatus.ACTIVE


def test_a_call_does_not_wait_for_its_insert_and_the_commit_does(database: Database) -> None:
    with begun(database) as (connection, note):
        with locked(database):
            note.delay("first")
            assert is_in_flight(connection)
        connection.commit()
        assert not is_in_flight(connection)
    assert committed(database) == ["first"]


def test_a_call_can_be_made_to_wait(database: Database) -> None:
    with begun(database, wait_for_insert=True) as (connection, note):
        connection.execute("SET LOCAL lock_timeout = '50ms'")
        with locked(database), pytest.raises(psycopg.errors.LockNotAvailable):
            note.delay("first")
        connection.rollback()
    assert committed(database) == []


def test_calls_and_statements_happen_in_the_order_they_were_made(database: Database) -> None:
    with begun(database) as (connection, note):
        note.delay("a")
        note.delay("b")
        assert texts(connection) == ["a", "b"]
        note.delay("c")
        connection.execute("DELETE FROM outbox")
        note.delay("d")
        with suppress(Undo), connection.transaction():
            note.delay("e")
            raise Undo
        with connection.transaction():
            note.delay("f")
        note.delay("g")
    assert committed(database) == ["d", "f", "g"]


def _copy(connection: psycopg.Connection[Any]) -> None:
    with connection.cursor() as cursor, cursor.copy("COPY outbox (event_type, routing_key, payload) FROM STDIN"):
        pass


def _server_side(connection: psycopg.Connection[Any]) -> None:
    with connection.cursor("named") as cursor:
        cursor.execute("SELECT 1")


def _nested(connection: psycopg.Connection[Any]) -> None:
    with connection.transaction():
        pass


def _bound_to(connection: psycopg.Connection[Any], **options: Any) -> TaskOutbox:
    outbox = TaskOutbox(**options)
    outbox._bound.set((connection,))
    return outbox


def _pipeline(connection: psycopg.Connection[Any]) -> None:
    with connection.pipeline():
        connection.execute("SELECT 1")


NEXT_STEPS: dict[str, Callable[[psycopg.Connection[Any]], object]] = {
    "commit": lambda connection: connection.commit(),
    "execute": lambda connection: connection.execute("SELECT 1"),
    "COMMIT as a statement": lambda connection: connection.execute("COMMIT"),
    "COMMIT AND CHAIN": lambda connection: connection.execute("COMMIT AND CHAIN"),
    "COMMIT and more": lambda connection: connection.execute("COMMIT; BEGIN"),
    "executemany": lambda connection: connection.cursor().executemany("SELECT %s", [(1,), (2,)]),
    "stream": lambda connection: list(connection.cursor().stream("SELECT 1")),
    "COPY": _copy,
    "a savepoint": _nested,
    "a pipeline": _pipeline,
    "a server-side cursor": _server_side,
    "another call": lambda connection: a_task(_bound_to(connection)).delay("another"),
}


def step_ends_transaction(step: Callable[[psycopg.Connection[Any]], object]) -> bool:
    return any(step is each for name, each in NEXT_STEPS.items() if "commit" in name.lower())


@pytest.mark.parametrize("step", NEXT_STEPS.values(), ids=NEXT_STEPS)
def test_whatever_comes_next_waits_for_the_answers(
    database: Database, step: Callable[[psycopg.Connection[Any]], object]
) -> None:
    with begun(database) as (connection, note):
        note.delay("first")
        step(connection)
        connection.commit()
    assert committed(database)[0] == "first"


@pytest.mark.parametrize("step", NEXT_STEPS.values(), ids=NEXT_STEPS)
def test_nobody_gets_past_an_insert_that_failed(
    database: Database, step: Callable[[psycopg.Connection[Any]], object]
) -> None:
    with begun(database) as (connection, note):
        connection.execute("SET LOCAL lock_timeout = '10ms'")
        with locked(database):
            note.delay("first")
            with pytest.raises(psycopg.errors.LockNotAvailable) as caught:
                step(connection)
        assert "not waited for" in caught.value.__notes__[0]
        connection.rollback()
        note.delay("afterwards")
    assert committed(database) == ["afterwards"]


def test_whoever_takes_no_notice_of_the_error_cannot_commit_either(database: Database) -> None:
    with begun(database) as (connection, note):
        note.delay("good")
        astray = a_task(_bound_to(connection, schema="nowhere"))
        astray.delay("bad")
        for step in NEXT_STEPS.values():
            with suppress(psycopg.Error):
                if not step_ends_transaction(step):
                    step(connection)
        with pytest.raises(psycopg.errors.UndefinedTable):
            connection.commit()
        assert connection.info.transaction_status == TransactionStatus.IDLE
        note.delay("afterwards")
    assert committed(database) == ["afterwards"]


def test_a_block_inside_another_whose_insert_failed_takes_the_other_with_it(database: Database) -> None:
    with begun(database, schema="nowhere") as (connection, note):
        with pytest.raises(psycopg.errors.UndefinedTable), connection.transaction():
            note.delay("first")
        with pytest.raises(psycopg.errors.UndefinedTable):
            connection.commit()
        assert connection.execute("SELECT 1").fetchone() == (1,)


def _undone_block(connection: psycopg.Connection[Any], call: Callable[[], object]) -> None:
    with suppress(Undo), connection.transaction():
        call()
        raise Undo


def _rolled_back_block(connection: psycopg.Connection[Any], call: Callable[[], object]) -> None:
    with connection.transaction():
        call()
        raise psycopg.Rollback


def _forced_block(connection: psycopg.Connection[Any], call: Callable[[], object]) -> None:
    with connection.transaction(force_rollback=True):
        call()


def _statements(connection: psycopg.Connection[Any], call: Callable[[], object]) -> None:
    connection.execute("SAVEPOINT here")
    call()
    connection.execute("ROLLBACK TO SAVEPOINT here")


def _method(connection: psycopg.Connection[Any], call: Callable[[], object]) -> None:
    call()
    connection.rollback()


@pytest.mark.parametrize("autocommit", [False, True])
@pytest.mark.parametrize("roll_back", [_undone_block, _rolled_back_block, _forced_block, _statements, _method])
def test_whoever_rolls_back_is_not_bothered(
    database: Database, roll_back: Callable[[Any, Any], None], autocommit: bool
) -> None:
    with psycopg.connect(database.dsn, autocommit=autocommit) as connection:
        astray = a_task(_bound_to(connection, schema="nowhere"))

        def call() -> None:
            connection.execute("SELECT 1")
            astray.delay("bad")
            assert is_in_flight(connection)

        if autocommit and roll_back in (_statements, _method):
            connection.execute("BEGIN")
        roll_back(connection, call)
        assert connection.execute("SELECT 1").fetchone() == (1,)
        connection.commit()


def test_threads_may_share_a_connection(database: Database) -> None:
    with begun(database) as (connection, _):

        def call_often() -> None:
            note = a_task(_bound_to(connection))
            for number in range(50):
                note.delay(str(number))

        with ThreadPoolExecutor(4) as pool:
            for work in [pool.submit(call_often) for _ in range(4)]:
                work.result()
    assert sorted(committed(database)) == sorted(str(number) for number in range(50) for _ in range(4))


def test_a_connection_that_is_closed_takes_the_calls_with_it(database: Database) -> None:
    with begun(database) as (connection, note):
        note.delay("first")
        connection.close()
    assert committed(database) == []


def test_a_connection_that_is_lost_is_an_error_and_no_wait_without_end(database: Database) -> None:
    with database.connect() as other, begun(database) as (connection, note):
        note.delay("first")
        other.execute("SELECT pg_terminate_backend(%s, 5000)", [connection.info.backend_pid])
        with pytest.raises(psycopg.OperationalError):
            connection.commit()
        assert connection.broken
    assert committed(database) == []


def test_the_server_shows_the_session_as_idle_in_its_transaction(database: Database) -> None:
    with database.connect() as other, begun(database) as (connection, note):
        note.delay("first")

        def is_idle() -> bool:
            row = other.execute(
                "SELECT state, query FROM pg_stat_activity WHERE pid = %s", [connection.info.backend_pid]
            ).fetchone()
            assert row is not None
            return row[0] == "idle in transaction" and "INSERT" in row[1]  # the answer lies in the socket

        wait_for(is_idle)


@pytest.mark.parametrize(
    ("calls", "size"), [(300, 10), (5, 9_000_000)], ids=["many calls", "messages larger than any buffer"]
)
def test_however_much_is_sent_all_of_it_arrives(database: Database, calls: int, size: int) -> None:
    sent = [f"{number}:" + "x" * size for number in range(calls)]
    with begun(database) as (connection, note):
        for text in sent:
            note.delay(text)
        connection.commit()
    assert committed(database) == sent


@pytest.mark.parametrize("client_encoding", ["UTF8", "LATIN1"])
def test_text_is_written_in_the_encoding_of_the_connection(database: Database, client_encoding: str) -> None:
    outbox = TaskOutbox()
    note = a_task(outbox)
    with psycopg.connect(database.dsn, client_encoding=client_encoding) as connection, outbox.session(connection):
        connection.execute("SELECT 1")
        for _ in range(2):
            note.app.send_task("straße", ("Käthe",))
            assert is_in_flight(connection)
    with database.connect() as connection:
        found = connection.execute("SELECT event_type, headers->>'argsrepr' FROM outbox").fetchall()
    assert found == [("straße", "('Käthe',)")] * 2


def test_a_callers_own_pipeline_is_left_alone(database: Database) -> None:
    with begun(database) as (connection, note), connection.pipeline():
        note.delay("first")
        connection.execute("SELECT 1")
        note.delay("second")
    assert committed(database) == ["first", "second"]


# Django.


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
