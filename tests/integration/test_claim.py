"""Claims on a real server: which rows are claimed, when they are claimed again, and which claim may change them."""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from typing import Any

import pytest

from outrider.errors import DatabaseError
from outrider.retry_scheduler.claim import FIRST_BATCH_SIZE, Claimer
from outrider.storage.decision import Burial, Retry
from outrider.storage.message import SCHEMA_VERSION
from outrider.storage.service_queries import RUN_LENGTH
from outrider.storage.sql_files import Queries
from outrider.storage.store import Store
from tests.fixtures.database import Database
from tests.fixtures.rows import ids_in, insert_rows, make_due, query, store_of

LEASE = 60.0


def claim(store: Store, name: str = "s/1", batch_size: int = 100, lease_seconds: float = LEASE) -> list[int]:
    messages, _ = store.claim_due(name, batch_size=batch_size, lease_seconds=lease_seconds)
    return [message.id for message in messages]


# -- which rows --------------------------------------------------------------------------------------------------------


def test_due_rows_are_claimed_and_others_are_not(store: Store) -> None:
    due = insert_rows(store.connection, 3)
    insert_rows(store.connection, 2, due_in="1 hour")
    assert claim(store) == due
    assert claim(store) == []


def test_a_claimed_row_is_leased_and_belongs_to_the_scheduler_from_then_on(store: Store) -> None:
    insert_rows(store.connection)
    claim(store, "s/1")
    (row,) = query(
        store.connection,
        "SELECT owner, claimed_by, attempts, extract(epoch FROM next_attempt_at - clock_timestamp())::float8 "
        "FROM outbox",
    )
    assert row[:3] == ("scheduler", "s/1", 0)
    assert row[3] == pytest.approx(LEASE, abs=5)


def test_a_claimed_message_has_all_its_columns(store: Store) -> None:
    insert_rows(store.connection, exchange="shop", headers='{"a": 1}', properties='{"priority": 3}', context="{}")
    ((message,), parked) = store.claim_due("s/1", batch_size=10, lease_seconds=LEASE)
    assert (message.exchange, message.headers, message.properties) == ("shop", '{"a": 1}', '{"priority": 3}')
    assert message.payload == b"{}"
    assert parked == 0
    assert message.next_attempt_at - store.server_clock() == pytest.approx(LEASE * 1e6, abs=5e6)


def test_the_longest_overdue_rows_come_first_and_the_batch_size_is_exact(store: Store) -> None:
    late = insert_rows(store.connection, 5, due_in="-1 second")
    later = insert_rows(store.connection, 5, due_in="-1 hour")
    assert claim(store, batch_size=5) == later
    assert claim(store, batch_size=3) == late[:3]


def test_rows_of_a_newer_format_are_left_to_newer_schedulers(store: Store) -> None:
    insert_rows(store.connection, schema_version=SCHEMA_VERSION + 1)
    assert claim(store) == []
    assert store.next_due() is None


def test_rows_that_another_scheduler_is_claiming_are_skipped_without_a_wait(store: Store, scratch: Database) -> None:
    with store_of(scratch) as ours, scratch.connect(autocommit=False) as theirs:
        rows = insert_rows(ours.connection, 4)
        taken = claim(Store(theirs, "public"), "theirs", batch_size=2)
        assert taken == rows[:2]
        ours.connection.execute("SET lock_timeout = '1s'")
        assert claim(ours) == rows[2:]
        theirs.rollback()
        assert claim(ours) == rows[:2]


# -- leases ------------------------------------------------------------------------------------------------------------


def test_a_row_whose_lease_has_ended_is_claimed_again_and_the_old_claim_changes_nothing(store: Store) -> None:
    (row,) = insert_rows(store.connection)
    claim(store, "old/1")
    make_due(store.connection, [row])
    assert claim(store, "new/1") == [row]
    assert store.settle([row], claim="old/1") == []
    assert store.fail([Retry(row, "no", 1.0)], claim="old/1") == []
    assert store.bury([Burial(row, "rejected", "no", 1)], claim="old/1") == []
    assert store.defer([row], claim="old/1", cooldown_seconds=1) == []
    assert store.release([row], claim="old/1") == []
    assert store.settle([row], claim="new/1") == [row]
    assert ids_in(store.connection) == []


def test_a_released_row_is_due_at_once(store: Store) -> None:
    rows = insert_rows(store.connection, 2)
    claim(store)
    assert store.release(rows, claim="s/1") == rows
    assert claim(store, "s/2") == rows


def test_a_deferred_row_waits_for_the_cooldown_and_keeps_its_attempts(store: Store) -> None:
    (row,) = insert_rows(store.connection, attempts=2)
    claim(store)
    store.defer([row], claim="s/1", cooldown_seconds=30)
    assert claim(store) == []
    assert store.next_due() == pytest.approx(30, abs=5)
    assert query(store.connection, "SELECT attempts FROM outbox") == [2]


def test_a_failed_row_spends_an_attempt_and_waits_for_its_backoff(store: Store) -> None:
    (row,) = insert_rows(store.connection, attempts=2)
    claim(store)
    assert store.fail([Retry(row, "NoRoute: x", 240.5)], claim="s/1") == [row]
    assert query(
        store.connection,
        "SELECT attempts, last_error, claimed_by, round(extract(epoch FROM next_attempt_at - last_failed_at), 1)::text "
        "FROM outbox",
    ) == [(3, "NoRoute: x", None, "240.5")]


# -- order -------------------------------------------------------------------------------------------------------------


def test_due_rows_of_a_key_are_claimed_together_up_to_the_first_that_is_not_due(store: Store) -> None:
    first = insert_rows(store.connection, 2, ordering_key="k")
    gap = insert_rows(store.connection, ordering_key="k", due_in="1 hour")
    behind = insert_rows(store.connection, 2, ordering_key="k")
    messages, parked = store.claim_due("s/1", batch_size=100, lease_seconds=LEASE)
    assert [message.id for message in messages] == first
    assert parked == 2
    assert query(store.connection, "SELECT id FROM outbox WHERE next_attempt_at = 'infinity' ORDER BY id") == behind
    assert gap[0] not in first


def test_rows_behind_a_failed_head_are_parked_once_and_not_read_by_later_claims(store: Store) -> None:
    (head,) = insert_rows(store.connection, ordering_key="k", due_in="1 hour")
    insert_rows(store.connection, 30, ordering_key="k")
    others = insert_rows(store.connection, 5)
    messages, parked = store.claim_due("s/1", batch_size=100, lease_seconds=LEASE)
    assert ([message.id for message in messages], parked) == (others, 30)
    assert store.claim_due("s/2", batch_size=100, lease_seconds=LEASE) == ([], 0)
    make_due(store.connection, [head])
    assert claim(store, "s/3") == [head]


def test_a_key_whose_head_another_scheduler_holds_is_not_claimed(store: Store, scratch: Database) -> None:
    with store_of(scratch) as ours, scratch.connect(autocommit=False) as theirs:
        rows = insert_rows(ours.connection, 3, ordering_key="k")
        assert claim(Store(theirs, "public"), "theirs", batch_size=1) == rows[:1]
        assert claim(ours) == []  # not committed yet
        theirs.commit()
        assert claim(ours) == []
        assert ours.settle(rows[:1], claim="theirs") == rows[:1]
        assert claim(ours) == rows[1:]


def test_settling_a_head_unparks_the_rows_behind_it_up_to_the_run_length(store: Store) -> None:
    rows = insert_rows(store.connection, RUN_LENGTH + 50, ordering_key="k")
    other = insert_rows(store.connection, 3, ordering_key="other")
    assert claim(store, "s/1", batch_size=1) == rows[:1]
    assert claim(store, "s/2", batch_size=1000) == other
    store.settle(rows[:1], claim="s/1")
    assert claim(store, "s/3", batch_size=1000) == rows[1 : RUN_LENGTH + 1]
    assert claim(store, "s/4", batch_size=1000) == []
    store.settle(rows[1 : RUN_LENGTH + 1], claim="s/3")
    assert claim(store, "s/5", batch_size=1000) == rows[RUN_LENGTH + 1 :]


@pytest.mark.parametrize("archive", [False, True])
def test_a_settled_row_is_deleted_or_archived_and_its_key_continues(store: Store, archive: bool) -> None:
    rows = insert_rows(store.connection, 2, ordering_key="k")
    claim(store, "s/1", batch_size=1)
    assert claim(store, "s/2") == []
    assert store.settle(rows[:1], claim="s/1", archive=archive) == rows[:1]
    assert ids_in(store.connection, "outbox_archive") == (rows[:1] if archive else [])
    assert claim(store, "s/3") == rows[1:]


@pytest.mark.parametrize("options", [{}, {"followed": False}, {"archive": True}], ids=["", "unfollowed", "archive"])
def test_settling_returns_the_ids_that_were_there(store: Store, options: Any) -> None:
    rows = insert_rows(store.connection, 5)
    assert store.settle(rows[1:3], **options) == rows[1:3]
    assert sorted(store.settle(rows, **options)) == [rows[0], *rows[3:]]
    assert store.settle(rows, **options) == []
    assert ids_in(store.connection) == []


def test_rows_that_are_settled_as_unfollowed_leave_their_followers_to_unpark_heads(store: Store) -> None:
    head, *behind = insert_rows(store.connection, 3, ordering_key="k")
    store.connection.execute("UPDATE outbox SET next_attempt_at = 'infinity' WHERE id <> %s", [head])
    assert store.settle([head], followed=False) == [head]
    assert claim(store) == []
    assert store.unpark_heads() == behind[:1]
    assert claim(store) == behind[:1]


def test_burying_a_head_unparks_the_rows_behind_it(store: Store) -> None:
    head, *behind = insert_rows(store.connection, 3, ordering_key="k", attempts=4, dedup_key="once {n}")
    claim(store, "s/1", batch_size=1)
    assert claim(store, "s/2") == []
    assert store.bury([Burial(head, "max attempts", "no", 1)], claim="s/1") == [head]
    assert claim(store, "s/3") == behind
    assert query(store.connection, "SELECT id, reason, attempts, last_error, dedup_key FROM outbox_dead_letter") == [
        (head, "max attempts", 5, "no", "once 0")
    ]


def test_unparking_does_not_change_a_leased_row(store: Store) -> None:
    head, second, third = insert_rows(store.connection, 3, ordering_key="k")
    assert claim(store, "s/1") == [head, second, third]
    before = query(store.connection, "SELECT next_attempt_at FROM outbox WHERE id > %s ORDER BY id", head)
    store.settle([head], claim="s/1")
    assert query(store.connection, "SELECT next_attempt_at FROM outbox ORDER BY id") == before


def test_a_parked_row_that_was_missed_is_found_by_unpark_heads(store: Store) -> None:
    rows = insert_rows(store.connection, 3, ordering_key="a")
    insert_rows(store.connection, 3, ordering_key="b")
    store.connection.execute("UPDATE outbox SET next_attempt_at = 'infinity' WHERE id > %s", [rows[0]])
    store.connection.execute("DELETE FROM outbox WHERE id = %s", [rows[0]])  # without unparking the next row
    heads = [rows[1], rows[2] + 1]
    assert store.unpark_heads() == heads
    assert store.unpark_heads() == []
    assert claim(store) == heads


# -- batches -----------------------------------------------------------------------------------------------------------


def test_batches_double_while_they_are_full_and_start_small_again(store: Store) -> None:
    insert_rows(store.connection, FIRST_BATCH_SIZE * 8)
    claimer = Claimer("s", batch_size=FIRST_BATCH_SIZE * 4, lease_seconds=LEASE)
    batches = [claimer.claim(store) for _ in range(4)]
    assert [len(batch.messages) // FIRST_BATCH_SIZE for batch in batches] == [1, 2, 4, 1]
    insert_rows(store.connection, FIRST_BATCH_SIZE * 2)
    assert len(claimer.claim(store).messages) == FIRST_BATCH_SIZE
    assert len({batch.claim for batch in batches}) == 4


def test_a_batch_computes_the_databases_clock_without_a_query(store: Store) -> None:
    insert_rows(store.connection)
    batch = Claimer("s", batch_size=10, lease_seconds=LEASE).claim(store)
    claimed_at = batch.lease_ends_at - LEASE
    assert batch.server_time(claimed_at) == pytest.approx(store.server_clock(), abs=2e6)
    assert batch.server_time(claimed_at + 10) - batch.server_time(claimed_at) == 10_000_000


def test_a_batch_has_at_most_so_many_bytes_but_at_least_one_row(store: Store) -> None:
    rows = insert_rows(store.connection, 5, payload=b"x" * 10_000)
    large = insert_rows(store.connection, 1, payload=b"x" * 100_000)
    claimer = Claimer("s", batch_size=100, batch_bytes=25_000, lease_seconds=LEASE)
    batches = [[message.id for message in claimer.claim(store).messages] for _ in range(5)]
    assert batches == [rows[:2], rows[2:4], rows[4:], large, []]


def test_a_key_that_does_not_fit_into_a_batch_is_claimed_from_its_head_and_the_rest_is_not_parked(store: Store) -> None:
    rows = insert_rows(store.connection, 5, payload=b"x" * 10_000, ordering_key="k")
    messages, parked = store.claim_due("s/1", batch_size=100, batch_bytes=25_000, lease_seconds=LEASE)
    assert ([message.id for message in messages], parked) == (rows[:2], 0)
    store.settle(rows[:2], claim="s/1")
    assert claim(store) == rows[2:]


def test_rows_behind_the_head_of_their_key_do_not_count_against_the_bytes_of_a_batch(store: Store) -> None:
    head = insert_rows(store.connection, due_in="1 hour", ordering_key="k")
    behind = insert_rows(store.connection, 3, payload=b"x" * 10_000, ordering_key="k")
    rows = insert_rows(store.connection, 2, payload=b"x" * 10_000)
    messages, parked = store.claim_due("s/1", batch_size=100, batch_bytes=25_000, lease_seconds=LEASE)
    assert ([message.id for message in messages], parked) == (rows, len(behind))
    assert head


def test_the_size_of_a_row_is_the_same_in_sql_and_in_python(store: Store) -> None:
    columns: dict[str, Any] = {
        "headers": '{"a": "bc"}',
        "properties": '{"priority": 1}',
        "declarations": "[]",
        "context": "{}",
    }
    insert_rows(store.connection, payload=b"x" * 1000, **columns)
    insert_rows(store.connection, payload=b"")
    messages, _ = store.claim_due("s/1", batch_size=10, lease_seconds=LEASE)
    sizes = query(store.connection, f"SELECT {Queries('public')['message_bytes']} FROM outbox AS o ORDER BY id")
    assert [message.size for message in messages] == sizes


def test_after_a_slow_or_failed_claim_the_next_one_is_one_row(store: Store) -> None:
    insert_rows(store.connection, 200)
    now = [0.0]

    def clock() -> float:
        now[0] += LEASE / 2  # between the two readings of a claim
        return now[0]

    slow = Claimer("slow", batch_size=100, lease_seconds=LEASE, clock=clock)
    assert [len(slow.claim(store).messages) for _ in range(2)] == [FIRST_BATCH_SIZE, 1]
    failing = Claimer("failing", batch_size=100, lease_seconds=LEASE)
    with store.connection.transaction(force_rollback=True):
        store.connection.execute("ALTER TABLE outbox RENAME TO elsewhere")
        with pytest.raises(DatabaseError):
            failing.claim(store)
    assert [len(failing.claim(store).messages) for _ in range(3)] == [1, 2, 4]


# -- concurrency -------------------------------------------------------------------------------------------------------


def test_schedulers_side_by_side_deliver_each_row_once_and_each_key_in_order(store: Store, scratch: Database) -> None:
    insert_rows(store.connection, 300)
    for key in range(10):
        insert_rows(store.connection, 30, ordering_key=f"k{key}")
    keys = dict(query(store.connection, "SELECT id, ordering_key FROM outbox"))
    delivered: list[int] = []
    errors: list[BaseException] = []

    def work(number: int) -> None:
        dice = random.Random(number)
        try:
            with store_of(scratch) as store:
                while ids_in(store.connection):
                    name = f"s{number}/{dice.random()}"
                    claimed = claim(store, name, batch_size=dice.choice([1, 7, 40]), lease_seconds=30)
                    store.unpark_heads()
                    failed: set[str] = set()
                    for row in claimed:
                        if keys[row] in failed:
                            store.release([row], claim=name)
                        elif dice.random() < 0.1:
                            store.fail([Retry(row, "no", 0.001)], claim=name)
                            if keys[row] is not None:
                                failed.add(keys[row])
                        else:
                            delivered.append(row)
                            store.settle([row], claim=name)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []
    assert sorted(delivered) == sorted(keys)
    by_key: dict[str, list[int]] = defaultdict(list)
    for row in delivered:
        if keys[row] is not None:
            by_key[keys[row]].append(row)
    assert all(rows == sorted(rows) for rows in by_key.values())
