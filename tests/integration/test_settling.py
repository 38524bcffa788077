"""One row that cannot be written never holds up the others, whatever the exception; other errors are raised."""

from __future__ import annotations

import pytest

from outrider.errors import DatabaseError
from outrider.runtime.settling import FIXED_TEXT, Settling
from outrider.storage.decision import Burial, Retry
from outrider.storage.store import Store
from tests.fixtures.database import Database
from tests.fixtures.rows import ids_in, insert_rows, query, store_of

# The driver refuses the first two, with exceptions of different libraries.
NOT_STORABLE = pytest.mark.parametrize("text", ["a\0b", "\ud800"], ids=["NUL", "half a character"])


@NOT_STORABLE
def test_an_error_that_cannot_be_stored_is_replaced_and_the_other_rows_keep_theirs(store: Store, text: str) -> None:
    ids = insert_rows(store.connection, 9)
    retries = [Retry(each, text if each == ids[4] else f"error {each}", 60.0) for each in ids]
    assert sorted(Settling(store).fail(retries)) == ids
    expected = [(each, 1, FIXED_TEXT if each == ids[4] else f"error {each}") for each in ids]
    assert query(store.connection, "SELECT id, attempts, last_error FROM outbox ORDER BY id") == expected


@NOT_STORABLE
def test_a_dead_letter_whose_error_cannot_be_stored_is_buried_with_a_fixed_text(store: Store, text: str) -> None:
    ids = insert_rows(store.connection, 9)
    burials = [Burial(each, "undecodable", text if each == ids[0] else "bad", 0) for each in ids]
    assert sorted(Settling(store).bury(burials)) == ids
    letters = query(store.connection, "SELECT id, last_error FROM outbox_dead_letter ORDER BY id")
    assert letters == [(each, FIXED_TEXT if each == ids[0] else "bad") for each in ids]


def test_a_delivered_row_that_the_archive_refuses_is_deleted_without_its_copy(store: Store) -> None:
    ids = insert_rows(store.connection, 5)
    store.connection.execute(f"ALTER TABLE outbox_archive ADD CHECK (id <> {ids[2]})")
    assert sorted(Settling(store).settle(ids, archive=True)) == ids
    assert ids_in(store.connection) == []
    assert ids_in(store.connection, "outbox_archive") == [each for each in ids if each != ids[2]]


def test_a_row_that_a_claim_has_lost_is_not_written(store: Store) -> None:
    ids = insert_rows(store.connection, 2)
    (claimed, _) = store.claim_due("mine", batch_size=1, lease_seconds=60)
    retries = [Retry(each, "\ud800", 60.0) for each in ids]
    assert Settling(store, "mine").fail(retries) == [claimed[0].id]


def test_an_error_that_is_not_about_a_row_is_raised_and_nothing_is_written(database: Database) -> None:
    with store_of(database) as store, database.connect(autocommit=False) as other:
        ids = insert_rows(store.connection, 3)
        other.execute("SELECT FROM outbox WHERE id = %s FOR UPDATE", [ids[1]])
        store.connection.execute("SET lock_timeout = '100 ms'")
        with pytest.raises(DatabaseError, match="lock timeout"):
            Settling(store).settle(ids, archive=False)
        assert ids_in(store.connection) == ids
        store.connection.close()
        with pytest.raises(DatabaseError):
            Settling(store).settle(ids, archive=False)
