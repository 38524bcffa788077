"""The settler on a real table: what it gathers, and what ends the gathering."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from outrider.cdc_relay import settler as settler_module
from outrider.cdc_relay.pipeline import Delivered
from outrider.cdc_relay.settler import BATCH, Settler
from outrider.storage.store import Store
from tests.fixtures.rows import ids_in, insert_rows
from tests.fixtures.waiting import wait_for

FOR_EVER = 3600.0


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing but what a test does ends the gathering."""
    monkeypatch.setattr(settler_module, "GATHER_SECONDS", FOR_EVER)
    monkeypatch.setattr(settler_module, "PAUSE_SECONDS", FOR_EVER)


@contextmanager
def settling(store: Store, has_left_behind: Callable[[], bool] = lambda: False) -> Iterator[tuple[Settler, list[int]]]:
    """A running settler, and how many rows it settled at a time."""
    sizes: list[int] = []
    crashes: list[BaseException] = []
    settler = Settler(
        store,
        archive=False,
        has_left_behind=has_left_behind,
        on_settled=lambda done, _: sizes.append(len(done)),
        on_crash=crashes.append,
    )
    settler.start()
    try:
        yield settler, sizes
    finally:
        settler.close()
        assert crashes == []


def submit(settler: Settler, ids: list[int]) -> None:
    settler.submit([Delivered(row_id, xid=1) for row_id in ids])


def settle_the_first(settler: Settler, sizes: list[int], row_id: int) -> None:
    """Nothing is gathered before there was anything to settle."""
    submit(settler, [row_id])
    wait_for(lambda: sizes == [1], message="the first row is settled at once")


@pytest.mark.usefixtures("patient")
def test_a_whole_batch_is_settled_without_waiting_for_more(store: Store) -> None:
    first, *others = insert_rows(store.connection, 1 + BATCH)
    with settling(store) as (settler, sizes):
        settle_the_first(settler, sizes, first)
        submit(settler, others[: BATCH // 2])
        submit(settler, others[BATCH // 2 :])
        wait_for(lambda: sizes == [1, BATCH], message="a batch is settled")


@pytest.mark.usefixtures("patient")
def test_whoever_is_in_a_hurry_does_not_wait(store: Store) -> None:
    first, *others = insert_rows(store.connection, 11)
    with settling(store) as (settler, sizes):
        settle_the_first(settler, sizes, first)
        submit(settler, others[:5])
        submit(settler, others[5:])
        settler.hurry()
        wait_for(lambda: sum(sizes) == len(others) + 1, message="all are settled")
        assert sizes[1] == len(others)


@pytest.mark.parametrize("never", ["GATHER_SECONDS", "PAUSE_SECONDS"], ids=["a pause", "the time that it may take"])
def test_each_alone_ends_the_gathering(store: Store, monkeypatch: pytest.MonkeyPatch, never: str) -> None:
    monkeypatch.setattr(settler_module, never, FOR_EVER)
    first, *others = insert_rows(store.connection, 11)
    with settling(store) as (settler, sizes):
        settle_the_first(settler, sizes, first)
        submit(settler, others)
        wait_for(lambda: sum(sizes) == len(others) + 1, message="all are settled")


def test_rows_that_are_left_behind_shorten_the_gathering_though_it_has_begun(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settler_module, "GATHER_SECONDS", FOR_EVER)
    monkeypatch.setattr(settler_module, "PAUSE_SECONDS", 0.5)  # longer than any between two rows here
    first, *others = insert_rows(store.connection, BATCH)
    left_behind: list[int] = []
    with settling(store, lambda: bool(left_behind)) as (settler, sizes):
        settle_the_first(settler, sizes, first)
        left = iter(others)

        def another_one_comes() -> bool:
            submit(settler, [next(left)])  # so that there is no pause
            return len(sizes) > 1

        left_behind.append(1)
        wait_for(another_one_comes, message="what was gathered is settled")


@pytest.mark.parametrize("left_behind", [False, True])
def test_followers_are_woken_where_rows_were_left_behind(store: Store, left_behind: bool) -> None:
    head, follower = insert_rows(store.connection, 2, ordering_key="k")
    store.connection.execute("UPDATE outbox SET next_attempt_at = 'infinity' WHERE id = %s", [follower])
    with settling(store, lambda: left_behind) as (settler, sizes):
        submit(settler, [head])
        wait_for(lambda: sizes == [1], message="the head is settled")
    assert ids_in(store.connection) == [follower]
    due = store.connection.execute("SELECT isfinite(next_attempt_at) FROM outbox").fetchone()
    assert due == (left_behind,)
