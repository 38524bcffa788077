"""Which tasks are captured and which go to the broker directly; enqueuing a task connects to PostgreSQL only."""

from __future__ import annotations

import asyncio
import pickle
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from celery import Celery, chain, group
from celery.exceptions import Ignore, Retry
from psycopg.pq import TransactionStatus
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.pool import NullPool

from outrider import Context, OutsideTransactionError, OutsideTransactionWarning, tracking
from outrider.producer.celery import OutboxCelery, TaskOutbox, capture_tasks
from tests.fixtures.database import Database
from tests.fixtures.django import django_connection
from tests.fixtures.handles import url_for
from tests.fixtures.recording_transport import Transport, register

BROKERS = ("amqp://guest@127.0.0.1:1//", "redis://127.0.0.1:1/0")
BACKENDS = ("disabled://", "redis://127.0.0.1:1/1", "rpc://", "db+postgresql+psycopg2://nobody@127.0.0.1:1/none")


class Undo(Exception):
    pass


def add(x: int, y: int) -> int:
    return x + y


def fill(app: Any) -> Any:
    app.task(name="tests.add", shared=False)(add)
    app.task(name="reports.daily", shared=False)(daily_report)
    return app


def daily_report() -> str:
    return "report"


def make_app(outbox: TaskOutbox, **configuration: Any) -> Any:
    register()
    Transport.take()
    app = OutboxCelery("tests", broker="recording://", set_as_current=False, outbox=outbox)
    app.conf.update(**configuration)
    return fill(app)


def rows(database: Database, columns: str = "event_type") -> list[Any]:
    with database.connect() as connection:
        found = connection.execute(f"SELECT {columns} FROM outbox ORDER BY id").fetchall()
    return [row[0] if len(row) == 1 else row for row in found]


def sent() -> list[str]:
    """The tasks that went to the broker."""
    return [entry[3].properties["application_headers"]["task"] for entry in Transport.take() if entry[0] == "publish"]


@contextmanager
def no_sockets(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Refuses and records every connect of a Python socket. libpq's sockets are not Python's."""
    attempts: list[Any] = []

    def refuse(self: socket.socket, address: Any) -> None:
        attempts.append(address)
        raise ConnectionRefusedError(f"a socket to {address} at enqueue")

    with monkeypatch.context() as patch:
        patch.setattr(socket.socket, "connect", refuse)
        patch.setattr(socket.socket, "connect_ex", refuse)
        yield attempts


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("broker", BROKERS)
def test_no_socket_is_opened_at_enqueue(
    broker: str, backend: str, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    outbox = TaskOutbox()
    app = fill(OutboxCelery("tests", broker=broker, backend=backend, set_as_current=False, outbox=outbox))
    app.conf.task_send_sent_event = True
    task = app.tasks["tests.add"]
    with (
        no_sockets(monkeypatch) as attempts,
        database.connect(autocommit=False) as connection,
        outbox.session(connection),
    ):
        task.delay(1, 2)
        task.apply_async((1, 2), countdown=60, expires=600, link=task.s(3), priority=3)
        group(task.s(n, n) for n in range(3)).apply_async()
        chain(task.s(1, 2), group(task.s(3), task.s(4))).apply_async()
        app.send_task("elsewhere.work")
    assert attempts == []
    assert len([each for each in rows(database) if each != "task-sent"]) == 7


def test_the_socket_check_detects_a_publish_of_plain_celery(monkeypatch: pytest.MonkeyPatch) -> None:
    app = fill(Celery("tests", broker=BROKERS[0], set_as_current=False))
    with no_sockets(monkeypatch) as attempts, pytest.raises(Exception, match=r"refused|socket"):
        app.tasks["tests.add"].apply_async((1, 2), retry=False)
    assert attempts


def test_tasks_are_rolled_back_with_their_transaction_or_savepoint(database: Database) -> None:
    outbox = TaskOutbox()
    task = make_app(outbox).tasks["tests.add"]
    with database.connect(autocommit=False) as connection, outbox.session(connection):
        task.delay(1, 2)
        connection.rollback()
        task.delay(3, 4)
        with suppress(Undo), connection.transaction():
            group(task.s(n, n) for n in range(3)).apply_async()
            raise Undo
    assert rows(database, "convert_from(payload, 'UTF8')::json->0->>0") == ["3"]
    assert sent() == []


def test_the_result_of_a_captured_task_is_an_async_result_as_usual(database: Database) -> None:
    outbox = TaskOutbox()
    app = make_app(outbox, result_backend="cache+memory://")
    with database.connect(autocommit=False) as connection, outbox.session(connection):
        result = app.tasks["tests.add"].delay(1, 2)
    assert isinstance(result, app.AsyncResult)
    assert result.state == "PENDING"
    assert [str(each) for each in rows(database, "event_id")] == [result.id]
    app.backend.store_result(result.id, 3, "SUCCESS")
    assert result.get(timeout=1) == 3


def test_a_database_backend_is_first_used_when_a_result_is_read(database: Database) -> None:
    outbox = TaskOutbox()
    app = make_app(outbox, result_backend=f"db+{url_for(database.dsn, 'psycopg')}")
    tables = "SELECT to_regclass('celery_taskmeta')::text"
    with database.connect(autocommit=False) as connection, outbox.session(connection):
        result = app.tasks["tests.add"].delay(1, 2)
        again = app.tasks["tests.add"].delay(3, 4)
        assert connection.execute(tables).fetchone() == (None,)
    assert app.conf.database_create_tables_at_setup is True
    app.backend.store_result(result.id, 3, "SUCCESS")
    assert (result.get(timeout=30), again.state) == (3, "PENDING")


def test_calls_are_rolled_back_with_their_savepoint(database: Database) -> None:
    outbox = TaskOutbox()
    app = make_app(outbox)
    task = app.tasks["tests.add"]
    with database.connect(autocommit=False) as connection, outbox.session(connection):
        kept = task.delay(1, 2)
        with suppress(Undo), connection.transaction():
            task.delay(3, 4)
            raise Undo
        also_kept = task.apply_async((5, 6))
        assert isinstance(also_kept, app.AsyncResult)
    assert [str(each) for each in rows(database, "event_id")] == [kept.id, also_kept.id]
    assert rows(database, "headers->>'argsrepr'") == ["(1, 2)", "(5, 6)"]


def test_a_group_is_written_in_one_statement(database: Database) -> None:
    outbox = TaskOutbox()
    task = make_app(outbox).tasks["tests.add"]
    with database.connect(autocommit=False) as connection, outbox.session(connection):
        group(task.s(n, n) for n in range(50)).apply_async()
        [(statements,)] = connection.execute("SELECT count(DISTINCT cmin::text) FROM outbox").fetchall()
    assert statements == 1
    assert len(rows(database)) == 50


def test_outside_a_transaction_a_task_is_captured_at_once_with_a_warning(database: Database) -> None:
    outbox = TaskOutbox(connect=database.connect)
    task = make_app(outbox).tasks["tests.add"]
    with pytest.warns(OutsideTransactionWarning, match=r"tests\.add is called outside a transaction") as caught:
        task.delay(1, 2)
    assert caught[0].filename == __file__
    assert rows(database) == ["tests.add"]


def test_outside_a_transaction_a_task_can_be_refused_or_sent_direct(database: Database) -> None:
    with pytest.raises(OutsideTransactionError):
        make_app(TaskOutbox(outside_transaction="raise")).tasks["tests.add"].delay(1, 2)
    with pytest.raises(OutsideTransactionError, match="needs `connect`"):
        make_app(TaskOutbox()).tasks["tests.add"].delay(1, 2)
    direct = TaskOutbox(outside_transaction="direct")
    task = make_app(direct).tasks["tests.add"]
    task.delay(1, 2)
    with database.connect() as connection, direct.session(connection):  # bound, but in autocommit
        task.delay(1, 2)
        with connection.transaction():
            task.delay(3, 4)
    assert sent() == ["tests.add", "tests.add"]
    assert rows(database) == ["tests.add"]


def test_excluded_tasks_go_direct_even_as_members_of_a_group(database: Database) -> None:
    outbox = TaskOutbox(exclude_tasks=["reports.*", "elsewhere.work"])
    app = make_app(outbox)
    with database.connect(autocommit=False) as connection, outbox.session(connection):
        group(app.tasks["tests.add"].s(1, 2), app.tasks["reports.daily"].s()).apply_async()
        app.send_task("elsewhere.work")
        app.send_task("elsewhere.other")
    assert rows(database) == ["tests.add", "elsewhere.other"]
    assert sent() == ["reports.daily", "elsewhere.work"]


def test_a_call_that_brings_its_own_producer_or_connection_goes_direct(database: Database) -> None:
    outbox = TaskOutbox()
    app = make_app(outbox)
    with database.connect(autocommit=False) as connection, outbox.session(connection):
        with app.amqp.producer_pool.acquire() as own:
            app.tasks["tests.add"].apply_async((1, 2), producer=own)
        with app.connection_for_write() as broker:
            app.tasks["tests.add"].apply_async((1, 2), connection=broker)
    assert sent() == ["tests.add", "tests.add"]
    assert rows(database) == []


@pytest.mark.parametrize("captured_later", [False, True])
def test_retry_and_replace_in_a_worker_go_direct(database: Database, captured_later: bool) -> None:
    outbox = TaskOutbox()
    register()
    app: Any
    if captured_later:
        app = Celery("tests", broker="recording://", set_as_current=False)
    else:
        app = OutboxCelery("tests", broker="recording://", set_as_current=False, outbox=outbox)

    class Base(app.Task):  # type: ignore[misc]
        pass

    @app.task(name="tests.again", bind=True, shared=False, base=Base)  # type: ignore[untyped-decorator]
    def again(self: Any) -> None:
        app.send_task("elsewhere.captured")
        self.retry(countdown=1)

    @app.task(name="tests.other", bind=True, shared=False)  # type: ignore[untyped-decorator]
    def other(self: Any) -> None:
        self.replace(chain(app.signature("elsewhere.first"), app.signature("elsewhere.second")))

    app.finalize()
    if captured_later:
        capture_tasks(app, outbox)
    Transport.take()
    with database.connect(autocommit=False) as connection, outbox.session(connection):
        for task, outcome in ((app.tasks["tests.again"], Retry), (app.tasks["tests.other"], Ignore)):
            task.push_request(id="a-task", called_directly=False, delivery_info={}, args=(), kwargs={}, retries=0)
            try:
                with pytest.raises(outcome):
                    task.run()
            finally:
                task.pop_request()
    assert sent() == ["tests.again", "elsewhere.first"]
    assert rows(database) == ["elsewhere.captured"]


def test_an_existing_application_captures_its_tasks_and_those_registered_later(database: Database) -> None:
    register()
    app = fill(Celery("tests", broker="recording://", set_as_current=False))
    early = app.tasks["tests.add"]
    outbox = TaskOutbox()
    capture_tasks(app, outbox)
    late = app.task(name="tests.late", shared=False)(add)
    with database.connect(autocommit=False) as connection, outbox.session(connection):
        early.delay(1, 2)
        late.delay(1, 2)
    assert rows(database) == ["tests.add", "tests.late"]
    assert isinstance(app, Celery)
    with pytest.raises(ValueError, match="already"):
        capture_tasks(app, outbox)


def test_an_eager_task_touches_neither_the_broker_nor_the_outbox() -> None:
    task = make_app(TaskOutbox(outside_transaction="raise"), task_always_eager=True).tasks["tests.add"]
    assert task.delay(1, 2).get() == 3
    assert group(task.s(1, 2), task.s(3, 4)).apply_async().get() == [3, 7]
    assert sent() == []


@pytest.mark.parametrize("protocol", [1, 2])
def test_a_task_with_an_eta_can_wait_in_the_database(database: Database, protocol: int) -> None:
    outbox = TaskOutbox(hold_eta=True)
    task = make_app(outbox, task_protocol=protocol).tasks["tests.add"]
    eta = datetime.now(UTC) + timedelta(hours=2)
    with database.connect(autocommit=False) as connection, outbox.session(connection):
        task.apply_async((1, 2), eta=eta)
        task.apply_async((1, 2), countdown=7200)
        group(task.s(1, 2), task.s(3, 4)).apply_async(eta=eta)
        task.apply_async((1, 2))
    held = "owner, next_attempt_at BETWEEN clock_timestamp() + '119 min' AND clock_timestamp() + '121 min'"
    assert rows(database, held) == [("scheduler", True)] * 4 + [("relay", False)]
    assert rows(database, "next_attempt_at")[0] == eta


def test_an_eta_without_a_time_zone_is_left_to_the_worker(database: Database) -> None:
    outbox = TaskOutbox(hold_eta=True)
    task = make_app(outbox).tasks["tests.add"]
    with database.connect(autocommit=False) as connection, outbox.session(connection):
        task.apply_async((1, 2), eta="2040-01-02T03:04:05")
    assert rows(database, "owner, headers->>'eta'") == [("relay", "2040-01-02T03:04:05")]


def test_tasks_can_carry_context(database: Database) -> None:
    outbox = TaskOutbox(context=Context(sentry=False, opentelemetry=False))
    task = make_app(outbox).tasks["tests.add"]
    with database.connect(autocommit=False) as connection, outbox.session(connection), tracking("request-1"):
        result = task.delay(1, 2)
    assert rows(database, "headers->'tracking_ids'") == [["request-1", result.id]]


def test_an_error_of_the_insert_is_raised_by_the_call(database: Database) -> None:
    outbox = TaskOutbox(schema="missing")
    task = make_app(outbox).tasks["tests.add"]
    with database.connect(autocommit=False) as connection, outbox.session(connection):
        connection.execute("SELECT 1")
        with pytest.raises(psycopg.errors.UndefinedTable, match=r"missing\.outbox"):
            task.delay(1, 2)
        assert connection.info.transaction_status == TransactionStatus.INERROR
        connection.rollback()


def test_an_error_of_the_insert_is_raised_by_the_call_in_a_django_transaction(database: Database) -> None:
    from django.db import ProgrammingError, transaction

    good, bad = TaskOutbox(django="default"), TaskOutbox(django="default", schema="missing")
    with django_connection(database.dsn):
        with transaction.atomic():
            make_app(good).tasks["tests.add"].delay(1, 2)
            with pytest.raises(ProgrammingError, match=r"missing\.outbox"), transaction.atomic():
                make_app(bad).tasks["tests.add"].delay(3, 4)
        with pytest.raises(ProgrammingError), transaction.atomic():  # noqa: PT012
            make_app(good).tasks["tests.add"].delay(5, 6)
            make_app(bad).tasks["tests.add"].delay(7, 8)
    assert rows(database, "convert_from(payload, 'UTF8')::json->0->>0") == ["1"]


def test_a_call_waits_for_its_insert(database: Database) -> None:
    outbox = TaskOutbox()
    task = make_app(outbox).tasks["tests.add"]
    with (
        database.connect(autocommit=False) as locking,
        database.connect(autocommit=False) as connection,
        outbox.session(connection),
    ):
        locking.execute("LOCK TABLE outbox IN ACCESS EXCLUSIVE MODE")
        connection.execute("SET LOCAL lock_timeout = '10ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            task.delay(1, 2)


def test_djangos_query_log_and_wrappers_see_the_insert(database: Database) -> None:
    from django.db import transaction
    from django.test.utils import CaptureQueriesContext

    seen: list[str] = []

    def comment(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        seen.append(sql)
        return execute(f"/* 100%% ours */ {sql}", params, many, context)

    task = make_app(TaskOutbox(django="default")).tasks["tests.add"]
    with django_connection(database.dsn) as connection, transaction.atomic(), connection.execute_wrapper(comment):
        with CaptureQueriesContext(connection) as queries:
            task.delay(1, 2)
        assert ["INSERT" in query["sql"] for query in queries] == [True]
        assert queries[0]["sql"].startswith("/* 100% ours */")
    assert ["INSERT" in sql for sql in seen] == [True]
    assert rows(database) == ["tests.add"]


def test_django_transactions_are_found_by_their_alias(database: Database) -> None:
    from django.db import transaction

    outbox = TaskOutbox(django="default")
    task = make_app(outbox).tasks["tests.add"]
    with django_connection(database.dsn), django_connection(database.dsn, "other"):
        with transaction.atomic():
            task.delay(1, 2)
            with suppress(Undo), transaction.atomic():
                task.delay(3, 4)
                raise Undo
        with transaction.atomic(using="other"), pytest.warns(OutsideTransactionWarning):
            task.delay(5, 6)
    assert rows(database, "convert_from(payload, 'UTF8')::json->0->>0") == ["1", "5"]


def test_the_sessions_of_a_bound_sessionmaker_are_found(database: Database) -> None:
    outbox = TaskOutbox(outside_transaction="raise")
    task = make_app(outbox).tasks["tests.add"]
    make_session = sessionmaker(create_engine(url_for(database.dsn, "psycopg"), poolclass=NullPool))
    outbox.bind(make_session)
    with make_session.begin() as session:
        task.delay(1, 2)
        with suppress(Undo), session.begin_nested():
            task.delay(3, 4)
            raise Undo
    with make_session() as session, session.begin():
        task.delay(5, 6)
        session.rollback()
    with pytest.raises(OutsideTransactionError):
        task.delay(7, 8)
    assert rows(database, "convert_from(payload, 'UTF8')::json->0->>0") == ["1"]


def test_a_session_can_be_bound_for_a_block(database: Database) -> None:
    outbox = TaskOutbox(outside_transaction="raise")
    task = make_app(outbox).tasks["tests.add"]
    with Session(create_engine(url_for(database.dsn, "psycopg2"), poolclass=NullPool)) as session:
        with outbox.session(session):
            task.delay(1, 2)
        with pytest.raises(OutsideTransactionError):
            task.delay(3, 4)
        session.commit()
    assert len(rows(database)) == 1


def test_an_asynchronous_session_captures_inside_run_sync(database: Database) -> None:
    outbox = TaskOutbox(outside_transaction="raise")
    task = make_app(outbox).tasks["tests.add"]

    def call(session: Session, x: int) -> None:
        with outbox.session(session):
            task.delay(x, 0)

    async def scenario() -> None:
        engine = create_async_engine(url_for(database.dsn, "asyncpg"), poolclass=NullPool)
        async with AsyncSession(engine) as session:
            await session.run_sync(call, 1)
            await session.rollback()
            await session.run_sync(call, 2)
            await session.commit()
        with pytest.raises(OutsideTransactionError):
            task.delay(3, 0)

    asyncio.run(scenario())
    assert rows(database, "convert_from(payload, 'UTF8')::json->0->>0") == ["2"]


def test_an_asynchronous_handle_cannot_be_bound() -> None:
    from psycopg import AsyncConnection

    binding = TaskOutbox().session(AsyncConnection.__new__(AsyncConnection))
    with pytest.raises(TypeError, match="synchronous"):
        binding.__enter__()


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="capture, direct, raise"):
        TaskOutbox(outside_transaction="maybe")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="not a str"):
        TaskOutbox(exclude_tasks="reports.*")


def test_an_application_can_be_pickled_as_pools_that_spawn_need() -> None:
    app = make_app(TaskOutbox(django="other", exclude_tasks=["reports.*"], context=Context(structlog=("request",))))
    copy = pickle.loads(pickle.dumps(app))
    assert isinstance(copy, OutboxCelery)
    assert (copy.outbox.django, copy.outbox.exclude_tasks) == ("other", ("reports.*",))
    assert copy.outbox.context == app.outbox.context
