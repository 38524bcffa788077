"""The store on a real server in unusual situations: ids that are in use, and deadlocks."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from outrider.errors import DatabaseError
from outrider.storage.decision import Burial
from outrider.storage.query_runner import DEADLOCK
from outrider.storage.store import Store
from tests.fixtures.database import Database
from tests.fixtures.rows import ids_in, insert_rows, query
from tests.fixtures.waiting import wait_for

LOCKED = "SELECT 1 FROM outbox WHERE id = %s FOR UPDATE"


# -- ids that are in use ----------------------------------------------------------------------------------------------


def restart_at(store: Store, row_id: int) -> None:
    """Restart the ids at this one, as TRUNCATE ... RESTART IDENTITY would at 1."""
    store.connection.execute("TRUNCATE outbox")
    store.connection.execute("SELECT setval(pg_get_serial_sequence('outbox', 'id'), %s, false)", [row_id])


def test_a_delivered_row_leaves_the_outbox_though_the_archive_has_its_id(store: Store) -> None:
    (row_id,) = insert_rows(store.connection, event_type="older")
    assert store.settle([row_id], archive=True) == [row_id]
    restart_at(store, row_id)
    assert insert_rows(store.connection, event_type="newer") == [row_id]
    assert store.settle([row_id], archive=True) == [row_id]
    assert query(store.connection, "SELECT event_type FROM outbox_archive WHERE id = %s", row_id) == ["older"]


def dead_letters(store: Store) -> dict[int, str]:
    return dict(store.connection.execute("SELECT id, event_type FROM outbox_dead_letter ORDER BY id").fetchall())


def test_a_row_is_buried_though_a_dead_letter_has_its_id(store: Store) -> None:
    older = insert_rows(store.connection, 2, event_type="older")
    assert store.bury([Burial(each, "rejected", "no", 1) for each in older]) == older
    restart_at(store, older[0])
    newer = insert_rows(store.connection, 4, event_type="newer")
    assert newer[:2] == older
    assert store.bury([Burial(each, "rejected", "no", 1) for each in newer]) == newer
    assert ids_in(store.connection) == []
    first, last = older[0], newer[-1]
    assert dead_letters(store) == {
        **dict.fromkeys(older, "older"),
        **dict.fromkeys(range(first + 2, last + 1), "newer"),  # under their own ids
        **dict.fromkeys((last + 1, last + 2), "newer"),  # under ids that were free
    }


def test_a_row_expires_though_a_dead_letter_has_its_id(store: Store) -> None:
    (row_id,) = insert_rows(store.connection, event_type="older")
    assert store.bury([Burial(row_id, "rejected", "no", 1)]) == [row_id]
    restart_at(store, row_id)
    insert_rows(store.connection, event_type="newer")
    store.connection.execute("UPDATE outbox SET expires_at = now(), owner = 'scheduler'")
    assert store.expire(batch_size=10) == ["newer"]
    assert dead_letters(store) == {row_id: "older", row_id + 1: "newer"}


def test_two_dead_letters_that_had_the_same_id_are_both_replayed(store: Store) -> None:
    (row_id,) = insert_rows(store.connection, event_type="older")
    store.bury([Burial(row_id, "rejected", "no", 1)])
    restart_at(store, row_id)
    insert_rows(store.connection, event_type="newer")
    store.bury([Burial(row_id, "rejected", "no", 1)])
    assert store.replay_dead([row_id, row_id + 1]) == [(row_id, None, None), (row_id + 1, None, None)]
    assert query(store.connection, "SELECT event_type FROM outbox ORDER BY event_type") == ["newer", "older"]
    assert dead_letters(store) == {}


# -- deadlocks --------------------------------------------------------------------------------------------------------


@pytest.fixture
def rival(scratch: Database) -> Iterator[psycopg.Connection[Any]]:
    """Another session in a transaction. PostgreSQL never aborts it in a deadlock: its deadlock_timeout is longer."""
    with scratch.connect() as connection:
        connection.execute("SET deadlock_timeout = '1min'")
        connection.autocommit = False
        yield connection
        connection.rollback()


def waits_for_a_lock(database: Database, pid: int) -> bool:
    with database.connect() as connection:
        waits = "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = %s"
        return bool(query(connection, waits, pid)[0])


def create_deadlock(scratch: Database, store: Store, rival: psycopg.Connection[Any], ids: list[int]) -> None:
    """The rival holds the second row and locks the first; the store, which settles both, waits for the second."""
    wait_for(lambda: waits_for_a_lock(scratch, store.connection.info.backend_pid), message="the store never waited")
    rival.execute(LOCKED, [ids[0]])


def test_the_victim_of_a_deadlock_tries_again(scratch: Database, store: Store, rival: psycopg.Connection[Any]) -> None:
    store.connection.execute("SET deadlock_timeout = '1s'")
    ids = insert_rows(store.connection, 2)
    rival.execute(LOCKED, [ids[1]])
    with ThreadPoolExecutor(1) as pool:
        settled = pool.submit(store.settle, ids)
        create_deadlock(scratch, store, rival, ids)  # returns when the store's statement was aborted
        rival.rollback()
        assert sorted(settled.result(timeout=30)) == ids
    assert ids_in(store.connection) == []


def test_in_a_transaction_of_the_caller_a_deadlock_is_an_error(
    scratch: Database, store: Store, rival: psycopg.Connection[Any]
) -> None:
    store.connection.execute("SET deadlock_timeout = '1s'")
    ids = insert_rows(store.connection, 2)
    rival.execute(LOCKED, [ids[1]])

    def settle() -> list[int]:
        with store.connection.transaction():
            return store.settle(ids)

    with ThreadPoolExecutor(1) as pool:
        settled = pool.submit(settle)
        create_deadlock(scratch, store, rival, ids)
        with pytest.raises(DatabaseError, match="deadlock") as caught:
            settled.result(timeout=30)
        assert caught.value.sqlstate == DEADLOCK
    rival.rollback()
    assert ids_in(store.connection) == ids
