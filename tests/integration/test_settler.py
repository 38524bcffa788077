"""The settler on a real table: how it gathers rows, and what ends the gathering."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager

import pytest

from outrider.cdc_relay import settler as settler_module
from outrider.cdc_relay.settlements import Delivered
from outrider.cdc_relay.settler import BATCH, Settler
from outrider.errors import DatabaseError
from outrider.storage.store import Store
from tests.fixtures.rows import ids_in, insert_rows
from tests.fixtures.waiting import wait_for

FOR_EVER = 3600.0


@pytest.fixture
def gathers_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither time nor a pause ends the gathering."""
    monkeypatch.setattr(settler_module, "GATHER_SECONDS", FOR_EVER)
    monkeypatch.setattr(settler_module, "PAUSE_SECONDS", FOR_EVER)


class RunningSettler:
    """A settler, and how many rows it settled at a time."""

    def __init__(self, store: Store, blocked_keys: Collection[str]) -> None:
        self.settler = Settler(store, archive=False, blocked_keys=blocked_keys)
        self.sizes: list[int] = []

    def submit(self, ids: list[int]) -> None:
        self.settler.submit([Delivered(row_id, xid=1) for row_id in ids])

    def wait_for_sizes(self, sizes: list[int]) -> None:
        wait_for(lambda: self.take_sizes() == sizes, message=f"batches of {sizes} rows are settled")

    def take_sizes(self) -> list[int]:
        self.sizes += [len(batch.settlements) for batch in self.settler.take_settled()]
        return self.sizes

    def settle_the_first(self, row_id: int) -> None:
        """The first row is not gathered."""
        self.submit([row_id])
        self.wait_for_sizes([1])


@contextmanager
def settling(store: Store, blocked_keys: Collection[str] = ()) -> Iterator[RunningSettler]:
    running = RunningSettler(store, blocked_keys)
    running.settler.start()
    try:
        yield running
        running.take_sizes()  # raises an error of the thread
    finally:
        running.settler.close()


@pytest.mark.usefixtures("gathers_for_ever")
def test_a_full_batch_ends_the_gathering(store: Store) -> None:
    first, *others = insert_rows(store.connection, 1 + BATCH)
    with settling(store) as running:
        running.settle_the_first(first)
        running.submit(others[: BATCH // 2])
        running.submit(others[BATCH // 2 :])
        running.wait_for_sizes([1, BATCH])


@pytest.mark.usefixtures("gathers_for_ever")
def test_stop_gathering_settles_all_rows_at_once(store: Store) -> None:
    first, *others = insert_rows(store.connection, 11)
    with settling(store) as running:
        running.settle_the_first(first)
        running.submit(others[:5])
        running.submit(others[5:])
        running.settler.stop_gathering()
        wait_for(lambda: sum(running.take_sizes()) == len(others) + 1, message="all are settled")
        assert running.sizes[1] == len(others)


@pytest.mark.parametrize("never", ["GATHER_SECONDS", "PAUSE_SECONDS"], ids=["a pause", "the time limit"])
def test_each_alone_ends_the_gathering(store: Store, monkeypatch: pytest.MonkeyPatch, never: str) -> None:
    monkeypatch.setattr(settler_module, never, FOR_EVER)
    first, *others = insert_rows(store.connection, 11)
    with settling(store) as running:
        running.settle_the_first(first)
        running.submit(others)
        wait_for(lambda: sum(running.take_sizes()) == len(others) + 1, message="all are settled")


def test_a_key_that_becomes_blocked_shortens_a_gathering_that_has_begun(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settler_module, "GATHER_SECONDS", FOR_EVER)
    monkeypatch.setattr(settler_module, "PAUSE_SECONDS", 0.5)  # longer than any between two rows here
    first, *others = insert_rows(store.connection, BATCH)
    blocked_keys: set[str] = set()
    with settling(store, blocked_keys) as running:
        running.settle_the_first(first)
        left = iter(others)

        def submit_another_row() -> bool:
            running.submit([next(left)])  # so that there is no pause
            return len(running.take_sizes()) > 1

        blocked_keys.add("k")
        wait_for(submit_another_row, message="the gathered rows are settled")


@pytest.mark.parametrize("blocked_keys", [(), ("k",)], ids=["no key is blocked", "a key is blocked"])
def test_followers_fall_due_while_a_key_is_blocked(store: Store, blocked_keys: Collection[str]) -> None:
    head, follower = insert_rows(store.connection, 2, ordering_key="k")
    store.connection.execute("UPDATE outbox SET next_attempt_at = 'infinity' WHERE id = %s", [follower])
    with settling(store, blocked_keys) as running:
        running.submit([head])
        running.wait_for_sizes([1])
    assert ids_in(store.connection) == [follower]
    due = store.connection.execute("SELECT isfinite(next_attempt_at) FROM outbox").fetchone()
    assert due == (bool(blocked_keys),)


def test_an_error_of_the_database_is_raised_when_the_results_are_taken(store: Store) -> None:
    (row_id,) = insert_rows(store.connection, 1)
    running = RunningSettler(store, ())
    store.connection.close()
    running.settler.start()
    running.submit([row_id])
    try:
        with pytest.raises(DatabaseError):
            wait_for(lambda: running.take_sizes(), message="the error is raised")
    finally:
        running.settler.close()
