"""Dead letters whose ids or dedup_keys other sessions take at the same moment; a row that cannot be moved."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from outrider.operations import dead_letters
from outrider.operations.dead_letters import DeadLetterSelection, ReplayResult
from outrider.storage.decision import Burial
from outrider.storage.store import Store
from tests.fixtures.database import Database
from tests.fixtures.message_commands import bury_rows, run_cli, run_cli_json
from tests.fixtures.rows import ids_in, insert_rows, query, store_of
from tests.fixtures.waiting import wait_for

PENDING = "a message with the same dedup_key is pending"
ALL = DeadLetterSelection()
END_OF_BIGINT = 2**63 - 1


def wait_until_blocked(observer: Store, work: Future[Any]) -> None:
    """Until a session of this database waits for a lock; an error of the work is raised."""
    statement = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    wait_for(lambda: query(observer.connection, statement) == [1] or (work.done() and work.result()))


def restart_ids(store: Store, at: int) -> None:
    store.connection.execute("SELECT setval(pg_get_serial_sequence('outbox', 'id'), %s, false)", [at])


def test_a_replay_leaves_only_the_letter_whose_dedup_key_a_producer_inserts_meanwhile(
    store: Store, scratch: Database
) -> None:
    bury_rows(store, 3, event_type="m{n}", dedup_key="k{n}")
    bury_rows(store, 2, event_type="plain{n}")
    before = query(store.connection, "SELECT * FROM outbox_dead_letter WHERE event_type = 'm1'")
    with store_of(scratch) as producer, ThreadPoolExecutor() as threads:
        with producer.connection.transaction():
            insert_rows(producer.connection, event_type="new", dedup_key="k1")
            replaying = threads.submit(dead_letters.replay, store, ALL)
            wait_until_blocked(producer, replaying)
        result = replaying.result(30)
        assert (result.replayed, result.kept) == (4, 1)
        assert [each[1:] for each in result.skipped] == [("k1", PENDING)]
        assert query(producer.connection, "SELECT event_type FROM outbox ORDER BY id") == (
            ["new", "m0", "m2", "plain0", "plain1"]
        )
        assert query(producer.connection, "SELECT * FROM outbox_dead_letter") == before


def test_a_replay_moves_the_letter_when_the_producer_rolls_back(store: Store, scratch: Database) -> None:
    bury_rows(store, 1, dedup_key="k")
    with store_of(scratch) as producer, ThreadPoolExecutor() as threads:
        with producer.connection.transaction(force_rollback=True):
            insert_rows(producer.connection, dedup_key="k")
            replaying = threads.submit(dead_letters.replay, store, ALL)
            wait_until_blocked(producer, replaying)
        assert replaying.result(30) == ReplayResult(1, 0)


def test_two_replays_at_once_move_each_letter_once(store: Store, scratch: Database) -> None:
    ids = bury_rows(store, 50, event_type="m{n}")
    with store_of(scratch) as other, ThreadPoolExecutor() as threads:
        with other.connection.transaction():
            assert len(other.replay_dead(ids)) == 50
            replaying = threads.submit(dead_letters.replay, store, ALL)
            wait_until_blocked(other, replaying)
        assert replaying.result(30) == ReplayResult(0, 0)
    assert len(ids_in(store.connection)) == 50


def test_a_replay_says_which_letters_it_left_and_why(store: Store, scratch: Database) -> None:
    pending, repeated, newest = bury_rows(store, 3)
    store.connection.execute("UPDATE outbox_dead_letter SET dedup_key = 'twice\x1b' WHERE id <> %s", [pending])
    store.connection.execute("UPDATE outbox_dead_letter SET dedup_key = 'here' WHERE id = %s", [pending])
    insert_rows(store.connection, dedup_key="here")
    (document,) = run_cli_json(scratch, "dead", "replay", "--all")
    assert document == {
        "replayed": 1,
        "kept": 2,
        "missing": 0,
        "skipped": [
            {"id": pending, "dedup_key": "here", "why": PENDING},
            {"id": repeated, "dedup_key": "twice\x1b", "why": "a newer dead letter has the same dedup_key"},
        ],
    }
    assert ids_in(store.connection, "outbox_dead_letter") == [pending, repeated]
    assert newest not in ids_in(store.connection, "outbox_dead_letter")
    assert run_cli(scratch, "dead", "replay", "--all").splitlines() == [
        f"replayed 0, kept 2 ({PENDING})",
        f"  {pending} (dedup_key here): {PENDING}",
        f"  {repeated} (dedup_key twice\\x1b): {PENDING}",
    ]


def test_a_letter_that_the_outbox_refuses_does_not_keep_the_others_back(store: Store, scratch: Database) -> None:
    ids = bury_rows(store, 9, event_type="m{n}")
    store.connection.execute("UPDATE outbox_dead_letter SET event_type = '' WHERE id = %s", [ids[4]])
    (document,) = run_cli_json(scratch, "dead", "replay", "--all")
    assert (document["replayed"], document["kept"]) == (8, 1)
    (skipped,) = document["skipped"]
    assert skipped["id"] == ids[4]
    assert "event_type must not be empty" in skipped["why"]


@pytest.mark.parametrize(
    ("properties", "starts_again"),
    [
        ('{"expiration": 5}', True),
        ('{"\\u0065xpiration": 5}', True),
        ('{"expiration": null}', False),
        ('{"correlation_id": "\\"expiration\\""}', False),
        ('{"nested": {"expiration": 5}}', False),
        ('{"expiration": 5, "x": "\\u0000"}', True),
        ('{"expiration": 5, "x": "\\ud800"}', True),
    ],
)
def test_the_time_to_live_of_a_replayed_message_starts_again_and_only_that(
    store: Store, properties: str, starts_again: bool
) -> None:
    bury_rows(store, 1, properties=properties, created_at="2020-01-01")
    assert dead_letters.replay(store, ALL) == ReplayResult(1, 0)
    assert query(store.connection, "SELECT created_at > '2021-01-01' FROM outbox") == [starts_again]


def test_two_burials_at_once_get_different_ids_though_both_collide(store: Store, scratch: Database) -> None:
    first = bury_rows(store, 2, event_type="older")
    restart_ids(store, first[0])
    again = insert_rows(store.connection, 2, event_type="newer")
    assert again == first
    with store_of(scratch) as other, ThreadPoolExecutor() as threads:
        with other.connection.transaction():
            assert other.bury([Burial(again[0], "rejected", "no", 1)]) == [again[0]]
            burying = threads.submit(store.bury, [Burial(again[1], "rejected", "no", 1)])
            wait_until_blocked(other, burying)
        assert burying.result(30) == [again[1]]
    assert ids_in(store.connection) == []
    assert ids_in(store.connection, "outbox_dead_letter") == list(range(first[0], first[0] + 4))


def test_a_row_is_buried_though_a_letter_has_the_largest_id(store: Store) -> None:
    (row_id,) = bury_rows(store, 1, event_type="older")
    store.connection.execute("UPDATE outbox_dead_letter SET id = %s", [END_OF_BIGINT])
    bury_rows(store, 1, event_type="its own id")
    store.connection.execute(
        "INSERT INTO outbox (id, event_type, routing_key, payload) OVERRIDING SYSTEM VALUE "
        "VALUES (%s, 'newer', '', '')",
        [END_OF_BIGINT],
    )
    assert store.bury([Burial(END_OF_BIGINT, "rejected", "no", 1)]) == [END_OF_BIGINT]
    assert query(store.connection, "SELECT event_type FROM outbox_dead_letter ORDER BY id") == (
        ["its own id", "newer", "older"]
    )
    assert dead_letters.replay(store, ALL).replayed == 3
    assert ids_in(store.connection)[0] > row_id


def test_rows_expire_though_a_letter_has_the_largest_id(store: Store) -> None:
    bury_rows(store, 1)
    store.connection.execute("UPDATE outbox_dead_letter SET id = %s", [END_OF_BIGINT])
    store.connection.execute(
        "INSERT INTO outbox (id, event_type, routing_key, payload, expires_at, owner) OVERRIDING SYSTEM VALUE "
        "VALUES (%s, 'late', '', '', '2020-01-01', 'scheduler')",
        [END_OF_BIGINT],
    )
    assert store.expire(batch_size=10) == ["late"]
