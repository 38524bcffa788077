"""The limit of a statement, kept by the client: on a server that is busy, and behind a network that is silent."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from outrider.errors import DatabaseError
from outrider.storage.connection import connect
from outrider.storage.query_runner import QueryRunner
from outrider.storage.statement_limit import CANCEL_SECONDS, suspended_limit
from outrider.storage.store import Store
from tests.fixtures.database import Database
from tests.fixtures.proxy import FaultProxy
from tests.fixtures.rows import insert_rows, query, store_of
from tests.fixtures.servers import address_of
from tests.fixtures.waiting import wait_for

LIMIT = 0.5


def open_limited(dsn: str) -> Store:
    connection = connect(dsn, application_name="limited", statement_timeout_seconds=LIMIT)
    return Store(connection, "public")


@pytest.fixture
def limited(database: Database) -> Iterator[Store]:
    store = open_limited(database.dsn)
    yield store
    store.connection.close()


def exceed(store: QueryRunner) -> DatabaseError:
    started = time.monotonic()
    with pytest.raises(DatabaseError, match="statement_timeout_seconds") as caught:
        store._execute("newest_id")
    assert time.monotonic() - started < LIMIT * 2 + CANCEL_SECONDS + 2
    assert store.connection.closed
    return caught.value


def test_a_statement_that_waits_for_a_lock_is_cancelled_and_the_connection_closed(
    limited: Store, database: Database
) -> None:
    with database.connect(autocommit=False) as other:
        other.execute("LOCK TABLE outbox IN ACCESS EXCLUSIVE MODE")
        assert exceed(limited).sqlstate == "57014"
        with database.connect() as observer:
            ours = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'limited'"
            wait_for(lambda: query(observer, ours) == [0], message="the server still runs the statement")


def test_a_silent_network_ends_a_statement_too(database: Database, fault_proxy: Callable[..., FaultProxy]) -> None:
    proxy = fault_proxy(*address_of(database.dsn))
    store = open_limited(proxy.through(database.dsn))
    proxy.blackhole()
    exceed(store)


def test_statements_within_the_limit_are_not_touched_however_many(limited: Store) -> None:
    until = time.monotonic() + LIMIT * 3
    while time.monotonic() < until:
        assert limited.newest_id() == 0


def test_a_statement_whose_time_has_no_bound_can_be_run_without_the_limit(limited: Store) -> None:
    with suspended_limit(limited.connection):
        limited.connection.execute("SELECT pg_sleep(%s)", [LIMIT * 3])
    assert limited.newest_id() == 0


def test_bookkeeping_waits_for_no_lock_and_changes_no_setting_of_the_session(database: Database) -> None:
    with store_of(database) as store, database.connect(autocommit=False) as other:
        other.execute("LOCK TABLE outbox_worker IN ACCESS EXCLUSIVE MODE")
        started = time.monotonic()
        with pytest.raises(DatabaseError) as caught, store.beside_messages():
            store.worker_seen("relay", "r", "active")
        assert caught.value.sqlstate == "55P03"
        assert time.monotonic() - started < 5
        other.rollback()
        with store.beside_messages():
            assert query(store.connection, "SHOW synchronous_commit") == ["off"]
            store.worker_seen("relay", "r", "active")
        assert query(store.connection, "SHOW synchronous_commit") == ["on"]
        assert query(store.connection, "SHOW lock_timeout") == ["0"]


def test_keys_are_read_in_portions_and_only_those_without_a_row_are_free(database: Database) -> None:
    with store_of(database) as store:
        insert_rows(store.connection, 25, ordering_key="k{n}")
        portions = list(store.keys_in_table(at_once=10))
        assert [len(portion) for portion in portions] == [10, 10, 5]
        assert {key for portion in portions for key in portion} == {f"k{n}" for n in range(25)}
        assert store.keys_without_rows(["k3", "gone", "k24"]) == {"gone"}
