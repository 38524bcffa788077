"""A task's INSERT is not waited for, and yet nobody gets past one that failed: psycopg 3."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
import pytest
from psycopg.pq import TransactionStatus

from outrider.producer.celery import TaskOutbox
from tests.fixtures.database import Database
from tests.fixtures.notes import Undo, a_task, committed, is_in_flight, texts
from tests.fixtures.waiting import wait_for


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
