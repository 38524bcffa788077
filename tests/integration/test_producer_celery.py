"""Which tasks are captured and which go to the broker directly; enqueuing a task connects to PostgreSQL only."""

from __future__ import annotations

import asyncio
import pickle
import socket
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from celery import Celery, chain, group, signals
from celery.exceptions import Ignore, Retry
from psycopg.pq import TransactionStatus
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.pool import NullPool

from outrider import Context, OutsideTransactionError, OutsideTransactionWarning, tracking
from outrider.operations.message_selection import parse_message_id
from outrider.producer.celery import OutboxCelery, TaskOutbox, capture_tasks
from tests.fixtures.database import Database
from tests.fixtures.django import django_connection
from tests.fixtures.handles import url_for
from tests.fixtures.recording_transport import Transport, register
from tests.fixtures.waiting import wait_for

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


def test_calls_outside_a_transaction_are_logged_with_task_and_place_at_a_limited_rate(
    database: Database, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr("outrider.producer.celery.outside.time.monotonic", lambda: now[0])
    task = make_app(TaskOutbox(connect=database.connect)).tasks["tests.add"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OutsideTransactionWarning)
        for _ in range(5):
            task.delay(1, 2)
        now[0] += 61
        group(task.s(1, 2)).apply_async()  # another place
        for _ in range(2):
            task.delay(1, 2)
    lines = [each for each in caplog.messages if "outside a transaction" in each]
    assert len(lines) == 3  # a second loop is another place
    assert all("tests.add is called" in line and f"called at {__file__}:" in line for line in lines)


def test_the_log_counts_the_calls_that_it_left_out(
    database: Database, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr("outrider.producer.celery.outside.time.monotonic", lambda: now[0])
    task = make_app(TaskOutbox(connect=database.connect)).tasks["tests.add"]
    for seconds in (0, 1, 1, 60, 1):
        now[0] += seconds
        with pytest.warns(OutsideTransactionWarning):
            task.delay(1, 2)
    assert [line.rpartition("(")[2] for line in caplog.messages if "more calls" in line] == [
        "2 more calls since the last message)"
    ]
    assert len([line for line in caplog.messages if "outside a transaction" in line]) == 2


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


def test_a_task_that_an_eager_one_is_replaced_with_goes_through_the_outbox(database: Database) -> None:
    outbox = TaskOutbox(outside_transaction="raise")
    app = make_app(outbox)

    @app.task(name="tests.first", bind=True, shared=False)  # type: ignore[untyped-decorator]
    def first(self: Any) -> Any:
        return self.replace(app.tasks["tests.second"].s().set(link=app.signature("elsewhere.linked", immutable=True)))

    @app.task(name="tests.second", bind=True, shared=False, max_retries=1)  # type: ignore[untyped-decorator]
    def second(self: Any) -> str:
        app.send_task("elsewhere.work")
        if self.request.retries == 0:
            self.retry(countdown=0)
        return "done"

    with database.connect(autocommit=False) as connection, outbox.session(connection):
        assert app.tasks["tests.first"].apply().get() == "done"
    assert sent() == []
    assert rows(database) == ["elsewhere.work", "elsewhere.work", "elsewhere.linked"]


def test_at_most_one_task_of_a_dedup_key_waits(database: Database) -> None:
    outbox = TaskOutbox(outside_transaction="raise")
    app = make_app(outbox, task_send_sent_event=True)
    task = app.tasks["tests.add"]
    published: list[str] = []

    def receiver(headers: Any, **_: Any) -> None:
        published.append(headers["id"])

    signals.after_task_publish.connect(receiver)
    try:
        with database.connect(autocommit=False) as connection, outbox.session(connection):
            first = task.apply_async((1, 2), dedup_key="user:1")
            other = task.apply_async((1, 2), dedup_key="user:2", task_id="of my own")
            again = task.apply_async((3, 4), dedup_key="user:1")
            also = app.send_task("tests.add", dedup_key="user:2")
            later = task.apply_async((5, 6), dedup_key="user:3", countdown=60)
    finally:
        signals.after_task_publish.disconnect(receiver)
    assert [each.new for each in (first, other, again, also, later)] == [True, True, False, False, True]
    assert (again.id, also.id) == (first.id, "of my own")
    assert type(again) is type(first)
    assert published == [first.id, other.id, later.id]
    assert rows(database) == ["tests.add", "task-sent"] * 3
    with database.connect() as connection:
        connection.execute("DELETE FROM outbox")  # delivered
        with connection.transaction(), outbox.session(connection):
            assert task.apply_async((7, 8), dedup_key="user:1").new
    assert "dedup" not in str(rows(database, "headers, properties, payload"))


def test_two_transactions_with_one_dedup_key_write_one_task(database: Database) -> None:
    outbox = TaskOutbox(outside_transaction="raise")
    task = make_app(outbox).tasks["tests.add"]

    def call() -> Any:
        with database.connect(autocommit=False) as connection, outbox.session(connection):
            return task.apply_async((3, 4), dedup_key="k")

    with ThreadPoolExecutor(1) as pool, database.connect() as watching:
        with database.connect(autocommit=False) as connection, outbox.session(connection):
            first = task.apply_async((1, 2), dedup_key="k")
            waiting = pool.submit(call)
            wait_for(
                lambda: watching.execute("SELECT 1 FROM pg_locks WHERE NOT granted").fetchall(),
                message="the second call does not wait for the first transaction",
            )
        assert (waiting.result(60).id, waiting.result(60).new) == (first.id, False)
    assert len(rows(database)) == 1


def test_a_role_that_may_only_insert_learns_that_a_task_is_a_duplicate(database: Database) -> None:
    outbox = TaskOutbox(outside_transaction="raise")
    task = make_app(outbox).tasks["tests.add"]
    with database.connect(autocommit=False) as connection, outbox.session(connection):
        connection.execute("CREATE ROLE dedup_producer")
        connection.execute("GRANT INSERT ON outbox TO dedup_producer")
        connection.execute("SET LOCAL ROLE dedup_producer")
        first, again = (task.apply_async((1, 2), dedup_key="k", task_id=name) for name in ("first", "again"))
        assert (first.new, again.new, again.id) == (True, False, "again")
        connection.execute("RESET ROLE")
        connection.execute("GRANT SELECT (dedup_key, event_id, properties) ON outbox TO dedup_producer")
        connection.execute("SET LOCAL ROLE dedup_producer")
        assert task.apply_async((1, 2), dedup_key="k").id == "first"
        connection.rollback()


def test_a_dedup_key_is_refused_where_it_would_be_ignored(database: Database) -> None:
    outbox = TaskOutbox(exclude_tasks=["reports.*"], outside_transaction="direct")
    app = make_app(outbox, result_backend="cache+memory://")
    task, report = app.tasks["tests.add"], app.tasks["reports.daily"]
    keyed = task.s(1, 2).set(dedup_key="k")

    def in_a_transaction(call: Callable[[], Any]) -> None:
        with database.connect(autocommit=False) as connection, outbox.session(connection):
            call()

    for call in (
        lambda: group(keyed, task.s(1, 2)).apply_async(),
        lambda: chain(keyed, task.s(3)).apply_async(),
        lambda: chain(task.s(1, 2), task.s(3).set(dedup_key="k")).apply_async(),
        lambda: chain(task.s(1, 2), group(task.s(3), task.s(4).set(dedup_key="k")), task.s(5)).apply_async(),
        lambda: task.apply_async((1, 2), link=keyed),
        lambda: task.apply_async((1, 2), link=[task.s(3).on_error(keyed)]),
        lambda: report.apply_async(dedup_key="k"),
        lambda: task.apply_async((1, 2), dedup_key="x" * 1001),
    ):
        with pytest.raises(ValueError, match="dedup_key"):
            in_a_transaction(call)
    with pytest.raises(ValueError, match="goes to the broker directly"):
        task.apply_async((1, 2), dedup_key="k")
    assert rows(database) == sent() == []


def test_options_that_the_outbox_does_not_have_for_tasks_are_errors(database: Database) -> None:
    outbox = TaskOutbox()
    app = make_app(outbox)
    task = app.tasks["tests.add"]
    with database.connect(autocommit=False) as connection, outbox.session(connection):
        for name in ("dedupe_key", "dedup_keys", "ordering_key", "aggregate", "deliver_after", "event_id"):
            with pytest.raises(TypeError, match=name):
                task.apply_async((1, 2), **{name: "x"})
        stamped = task.s(1, 2)
        stamped.stamp(aggregate="a stamp of this name is Celery's")
        stamped.apply_async()
        task.apply_async((1, 2), app_id="shop", tenant="t-1", priority=3)
    assert len(rows(database)) == 2


def test_a_task_id_that_is_no_uuid_gives_the_message_an_event_id_that_can_be_computed(database: Database) -> None:
    outbox = TaskOutbox()
    task = make_app(outbox).tasks["tests.add"]
    with database.connect(autocommit=False) as connection, outbox.session(connection):
        assert task.apply_async((1, 2), task_id="nightly").id == "nightly"
        task.apply_async((1, 2), task_id="nightly")
    assert [str(each) for each in rows(database, "event_id")] == [parse_message_id("nightly")] * 2
    assert rows(database, "headers->>'id'") == ["nightly"] * 2


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
    assert task.apply_async((1, 2), dedup_key="ignored").get() == 3
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


def test_an_async_view_sends_direct_without_its_connection_and_enqueues_in_a_transaction(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As docs/celery.md says: the transaction and its calls are one synchronous function."""
    from asgiref.sync import sync_to_async
    from django.db import connections, transaction
    from django.http import HttpResponse
    from django.test import AsyncClient, override_settings
    from django.urls import path

    task = make_app(TaskOutbox(django="default", outside_transaction="direct")).tasks["tests.add"]

    @sync_to_async
    def place_order() -> None:
        try:
            with transaction.atomic():
                task.delay(3, 4)
        finally:
            connections.close_all()

    async def view(request: Any) -> HttpResponse:
        task.delay(1, 2)
        await place_order()
        return HttpResponse("placed")

    with django_connection(database.dsn):
        monkeypatch.delenv("DJANGO_ALLOW_ASYNC_UNSAFE")
        urls = type("urls", (), {"urlpatterns": [path("orders/", view)]})
        with override_settings(ROOT_URLCONF=urls, MIDDLEWARE=[]):
            answer = asyncio.run(AsyncClient().get("/orders/"))
    assert answer.content == b"placed"
    assert sent() == ["tests.add"]
    assert rows(database, "convert_from(payload, 'UTF8')::json->0->>0") == ["3"]


@pytest.mark.parametrize(("atomic", "autocommit"), [(True, True), (False, True), (False, False)])
def test_asking_django_for_a_transaction_opens_no_connection(
    atomic: bool, autocommit: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from outrider.producer.handles.django import in_transaction

    with django_connection("postgresql://nobody@127.0.0.1:1/none") as connection:
        monkeypatch.setitem(connection.settings_dict, "AUTOCOMMIT", autocommit)
        if atomic:
            monkeypatch.setattr(connection, "in_atomic_block", True)
        assert in_transaction(connection) is (atomic or not autocommit)
        assert connection.connection is None


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
