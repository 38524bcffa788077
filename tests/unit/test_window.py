from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from outrider.cdc_relay.lsn import Lsn
from outrider.cdc_relay.window import Window
from tests.fixtures.messages import make_message


def read_transaction(window: Window, xid: int, ids: list[int], end_lsn: int) -> None:
    window.begin(xid, 0)
    for row_id in ids:
        window.enter(make_message(id=row_id))
    window.commit(Lsn(end_lsn))


def test_a_transaction_is_confirmed_when_its_last_row_has_left() -> None:
    window = Window(max_messages=10, max_bytes=10_000)
    read_transaction(window, 1, [1, 2], 100)
    window.leave([1])
    assert window.confirmed == 0
    window.leave([2])
    assert window.confirmed == 100
    assert window.idle


def test_a_settled_transaction_waits_for_those_before_it() -> None:
    window = Window(max_messages=10, max_bytes=10_000)
    read_transaction(window, 1, [1], 100)
    read_transaction(window, 2, [2], 200)
    window.leave([2])
    assert window.confirmed == 0
    window.leave([1])
    assert window.confirmed == 200


def test_a_transaction_whose_commit_was_not_read_is_not_confirmed() -> None:
    window = Window(max_messages=10, max_bytes=10_000)
    window.begin(1, 0)
    window.enter(make_message(id=1))
    window.leave([1])
    assert window.confirmed == 0
    assert not window.idle
    window.commit(Lsn(100))
    assert window.confirmed == 100


def test_transactions_without_rows_are_confirmed_at_once() -> None:
    window = Window(max_messages=10, max_bytes=10_000)
    read_transaction(window, 1, [], 100)
    assert window.confirmed == 100


def test_an_idle_window_follows_the_server_and_a_busy_one_does_not() -> None:
    window = Window(max_messages=10, max_bytes=10_000)
    window.server_reached(Lsn(50))
    assert window.confirmed == 50
    read_transaction(window, 1, [1], 100)
    window.server_reached(Lsn(500))
    assert window.confirmed == 50
    window.leave([1])
    window.server_reached(Lsn(500))
    assert window.confirmed == 500


def test_the_window_is_bounded_in_messages_and_in_bytes() -> None:
    window = Window(max_messages=2, max_bytes=10_000)
    assert window.room == 2
    window.begin(1, 0)
    window.enter(make_message(id=1, payload=b"x" * 20_000))
    assert window.room == 0  # too many bytes, although the window accepted it
    window.leave([1])
    window.enter(make_message(id=2))
    window.enter(make_message(id=3))
    assert window.room == 0


@given(st.lists(st.integers(0, 4), max_size=20), st.randoms(use_true_random=False))
def test_the_confirmed_position_never_passes_an_unsettled_row(sizes: list[int], random: Random) -> None:
    window = Window(max_messages=1000, max_bytes=10**9)
    rows: dict[int, int] = {}
    for number, size in enumerate(sizes, start=1):
        ids = [number * 10 + offset for offset in range(size)]
        read_transaction(window, number, ids, number * 100)
        rows.update(dict.fromkeys(ids, number * 100))
    order = list(rows)
    random.shuffle(order)
    for row_id in order:
        window.leave([row_id])
        del rows[row_id]
        first_unsettled = min(rows.values(), default=len(sizes) * 100 + 100)
        assert window.confirmed == first_unsettled - 100 or (not rows and window.confirmed == len(sizes) * 100)
