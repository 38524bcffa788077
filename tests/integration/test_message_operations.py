"""Dead letters, pending messages and replay on a real server: in small batches, and with concurrent transactions."""

from __future__ import annotations

import pytest

from outrider.operations import dead_letters, pending_messages, replay
from outrider.operations.dead_letters import DeadLetterSelection
from outrider.operations.pending_messages import PendingSelection, RetryResult
from outrider.storage.fingerprint import fingerprint
from outrider.storage.store import Store
from tests.fixtures.database import Database
from tests.fixtures.message_commands import bury_rows
from tests.fixtures.rows import ids_in, insert_rows, query

ERROR = "Nacked: queue 'q{n}' is full"
FULL = fingerprint("rejected", "order.placed", ERROR)


def test_a_fingerprint_selects_in_any_batches_and_pages(store: Store) -> None:
    full = []
    for _ in range(4):
        full += bury_rows(store, 2, error=ERROR)
        bury_rows(store, 3)
    selection = DeadLetterSelection(fingerprint=FULL)
    pages = dead_letters.newest_first(store, selection, batch_size=3)
    assert [letter.id for letter in pages] == full[::-1]
    assert [letter.id for letter in dead_letters.newest_first(store, selection, limit=3)] == full[:-4:-1]
    assert [(group.fingerprint, group.messages) for group in dead_letters.group_by_failure(store, selection)] == [
        (FULL, 8)
    ]
    batches: list[int] = []
    assert dead_letters.discard(store, selection, batch_size=3, progress=batches.append) == 8
    assert sum(batches) == 8
    assert dead_letters.count(store, DeadLetterSelection()) == 12


def test_failures_beyond_the_largest_number_of_groups_become_one_group(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "MOST_GROUPS", 2)
    for word in ("a", "b", "c", "d"):
        bury_rows(store, error=word)
    most, *_ = dead_letters.group_by_failure(store, DeadLetterSelection())
    assert (most.messages, most.error) == (2, "")


def test_ages_select_from_both_sides(store: Store) -> None:
    ids = bury_rows(store, 3)
    for days, row_id in enumerate(ids):
        store.connection.execute(
            "UPDATE outbox_dead_letter SET died_at = died_at - %s * interval '1 day' WHERE id = %s", [days, row_id]
        )
    between = DeadLetterSelection(older_than_seconds=3600, newer_than_seconds=36 * 3600)
    assert [letter.id for letter in dead_letters.newest_first(store, between)] == ids[1:2]


def test_a_replayed_message_with_a_time_to_live_starts_again(store: Store) -> None:
    bury_rows(store, properties='{"expiration": 60}', created_at="2020-01-01")
    bury_rows(store, created_at="2020-01-01")
    assert dead_letters.replay(store, DeadLetterSelection()) == dead_letters.ReplayResult(2, 0)
    assert query(store.connection, "SELECT created_at > '2021-01-01' FROM outbox ORDER BY id") == [True, False]


def test_a_row_locked_by_another_transaction_is_skipped(store: Store, scratch: Database) -> None:
    held, free = insert_rows(store.connection, 2, due_in="1 hour")
    with scratch.connect(autocommit=False) as other:
        other.execute("SELECT 1 FROM outbox WHERE id = %s FOR UPDATE", [held])
        assert pending_messages.retry_now(store, PendingSelection(), batch_size=1) == RetryResult(1, 0, 0, 1)
    assert [each.id for each in pending_messages.oldest_first(store, PendingSelection(due=True))] == [free]


def test_a_row_that_is_due_keeps_its_time_and_its_expired_claim(store: Store) -> None:
    (row_id,) = insert_rows(store.connection, due_in="-1 hour", owner="scheduler", claimed_by="s/1", attempts=3)
    assert pending_messages.retry_now(store, PendingSelection(ids=[row_id]), reset_attempts=True) == RetryResult(
        1, 0, 0, 0
    )
    facts = "SELECT next_attempt_at < clock_timestamp() - interval '50 minutes', claimed_by, attempts FROM outbox"
    assert query(store.connection, facts) == [(True, "s/1", 0)]


def test_a_parked_row_that_is_now_the_head_of_its_key_becomes_due(store: Store) -> None:
    first, _ = insert_rows(store.connection, 2, due_in="infinity", owner="scheduler", ordering_key="k")
    assert pending_messages.retry_now(store, PendingSelection(ordering_key="k")) == RetryResult(1, 0, 1, 0)
    assert [each.id for each in pending_messages.oldest_first(store, PendingSelection(due=True))] == [first]


def test_a_replay_in_batches_keeps_the_order_of_versions_even_where_the_clock_was_set_back(store: Store) -> None:
    store.connection.execute(
        "INSERT INTO outbox_event (stream, version, event_id, event_type, payload, created_at) "
        "SELECT s, v, gen_random_uuid(), s || v, '', timestamptz '2026-01-01' "
        "+ CASE WHEN s = 'a' THEN -v ELSE v END * interval '1 second' "
        "FROM unnest(ARRAY['a', 'b']) AS s, generate_series(1, 5) AS v"
    )
    batches: list[int] = []
    done = replay.replay(
        store, replay.ReplaySelection(event_type="?*"), exchange="x", batch_size=3, progress=batches.append
    )
    assert (done, batches) == (10, [3, 3, 3, 1])
    order = [f"a{n}" for n in range(1, 6)] + [f"b{n}" for n in range(1, 6)]
    assert query(store.connection, "SELECT event_type FROM outbox ORDER BY id") == order


def test_messages_pruned_during_a_replay_are_not_counted(store: Store) -> None:
    ids = insert_rows(store.connection, 4)
    store.settle(ids, archive=True)

    def prune(_: int) -> None:
        store.connection.execute("DELETE FROM outbox_archive WHERE id = %s", [ids[-1]])

    assert replay.replay(store, replay.ReplaySelection(archive=True), batch_size=2, progress=prune) == 3
    assert len(ids_in(store.connection)) == 3
