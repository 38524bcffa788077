"""The maintenance tasks on a real server: each run does one bounded piece of work and counts it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from psycopg import sql

from outrider.errors import SettingsError
from outrider.operations import dead_letters
from outrider.operations.dead_letters import DeadLetterSelection, ReplayResult
from outrider.operations.outbox_state import read_queue_counts
from outrider.retry_scheduler import prune
from outrider.retry_scheduler.expire import Expire
from outrider.retry_scheduler.prune import Prune
from outrider.retry_scheduler.sample_gauges import SampleGauges
from outrider.retry_scheduler.unpark import Unpark
from outrider.runtime.maintenance import Maintenance, MaintenanceTask
from outrider.runtime.show_presence import ShowPresence
from outrider.settings.loading import load_settings
from outrider.settings.scheduler import SchedulerSettings
from outrider.storage.decision import Burial, DeadLetterReason, Retry
from outrider.storage.message import SCHEMA_VERSION
from outrider.storage.sql_files import script
from outrider.storage.store import Store
from outrider.telemetry.health import Health
from outrider.telemetry.metrics import Metrics
from tests.fixtures.rows import ids_in, insert_rows, query

DAY = 86_400.0


def settings(**values: Any) -> SchedulerSettings:
    required = {"database_url": "postgresql://nowhere", "broker_url": "amqp://nowhere"}
    return load_settings(SchedulerSettings, {**required, **values})


def bury_all(store: Store, reason: DeadLetterReason = "max attempts") -> list[int]:
    """Bury every row, as the relay does."""
    ids = ids_in(store.connection)
    return store.bury([Burial(each, reason, "NoRoute: nowhere", 1) for each in ids])


# -- expire -----------------------------------------------------------------------------------------------------------


def test_messages_past_their_expiry_become_dead_letters(store: Store) -> None:
    expired = insert_rows(store.connection, 2, due_in="1 hour", owner="scheduler", expires_at="2020-01-01", attempts=3)
    kept = insert_rows(store.connection, 1, expires_at="2120-01-01")
    metrics = Metrics("scheduler", ["order.*"])
    assert Expire(metrics).run_once(store) == {"expired": 2}
    labels = {"reason": "expired", "type": "order.placed"}
    assert metrics.registry.get_sample_value("outbox_messages_dead_lettered_total", labels) == 2
    assert ids_in(store.connection) == kept
    rows = query(store.connection, "SELECT id, reason, attempts FROM outbox_dead_letter ORDER BY id")
    assert rows == [(each, "expired", 3) for each in expired]


def test_expiry_leaves_what_a_scheduler_or_the_relay_may_be_sending(store: Store) -> None:
    insert_rows(store.connection, due_in="1 hour", expires_at="2020-01-01", owner="relay")
    insert_rows(store.connection, due_in="1 hour", expires_at="2020-01-01", owner="scheduler", claimed_by="s/1")
    insert_rows(store.connection, expires_at="2020-01-01", schema_version=SCHEMA_VERSION + 1)
    assert Expire(Metrics("scheduler")).run_once(store) == {"expired": 0}
    store.connection.execute("UPDATE outbox SET next_attempt_at = clock_timestamp()")
    assert Expire(Metrics("scheduler")).run_once(store) == {"expired": 2}


def test_the_rows_behind_an_expired_head_fall_due(store: Store) -> None:
    insert_rows(store.connection, due_in="1 hour", ordering_key="k", owner="scheduler", expires_at="2020-01-01")
    (behind,) = insert_rows(store.connection, due_in="infinity", ordering_key="k", owner="scheduler")
    Expire(Metrics("scheduler")).run_once(store)
    claimed, _ = store.claim_due("s/1", batch_size=10, lease_seconds=60)
    assert [message.id for message in claimed] == [behind]


# -- unpark -----------------------------------------------------------------------------------------------------------


def test_a_parked_head_falls_due_and_a_row_behind_its_head_stays_parked(store: Store) -> None:
    (head,) = insert_rows(store.connection, due_in="infinity", ordering_key="a", owner="scheduler")
    insert_rows(store.connection, due_in="1 hour", ordering_key="b")
    insert_rows(store.connection, due_in="infinity", ordering_key="b", owner="scheduler")
    assert Unpark().run_once(store) == {"unparked": 1}
    claimed, _ = store.claim_due("s/1", batch_size=10, lease_seconds=60)
    assert [message.id for message in claimed] == [head]


# -- prune ------------------------------------------------------------------------------------------------------------


def archive_and_bury(store: Store) -> None:
    """Three old and two new rows in the archive and among the dead letters."""
    ids = insert_rows(store.connection, 5)
    store.settle(ids, archive=True)
    insert_rows(store.connection, 5)
    bury_all(store)
    store.connection.execute(
        "UPDATE outbox_archive SET delivered_at = delivered_at - interval '2 days' WHERE id % 5 < 3"
    )
    store.connection.execute("UPDATE outbox_dead_letter SET died_at = died_at - interval '2 days' WHERE id % 5 < 3")


def test_nothing_is_pruned_unless_a_retention_is_set(store: Store) -> None:
    archive_and_bury(store)
    counts = Prune(settings()).run_once(store)
    assert not any(counts.values())
    assert len(ids_in(store.connection, "outbox_archive")) == len(ids_in(store.connection, "outbox_dead_letter")) == 5


def test_archive_and_dead_letters_are_pruned_by_their_age(store: Store) -> None:
    archive_and_bury(store)
    task = Prune(settings(archive_retention_seconds=DAY, dead_letter_retention_seconds=3 * DAY))
    assert task.run_once(store) == {
        "pruned_archive": 3,
        "pruned_dead_letters": 0,
        "pruned_inbox": 0,
        "forgotten_workers": 0,
    }
    task = Prune(settings(dead_letter_retention_seconds=DAY))
    assert task.run_once(store)["pruned_dead_letters"] == 3
    assert not task.unfinished


def test_pruning_takes_a_batch_at_a_time_and_says_when_there_is_more(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prune, "BATCH_SIZE", 2)
    archive_and_bury(store)
    task = Prune(settings(archive_retention_seconds=DAY))
    assert task.run_once(store)["pruned_archive"] == 2
    assert task.unfinished
    assert task.run_once(store)["pruned_archive"] == 1
    assert not task.unfinished


def test_the_presence_row_of_a_killed_service_is_deleted_after_a_day(store: Store) -> None:
    for name in ("living", "dead"):
        store.worker_seen("relay", name, "active")
    store.connection.execute(
        "UPDATE outbox_worker SET last_seen_at = last_seen_at - interval '25 hours' WHERE name = 'dead'"
    )
    assert Prune(settings()).run_once(store)["forgotten_workers"] == 1
    assert query(store.connection, "SELECT name FROM outbox_worker") == ["living"]


def test_inbox_marks_are_pruned_after_two_weeks_or_the_set_retention_in_small_batches(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prune, "BATCH_SIZE", 2)
    store.connection.execute("TRUNCATE outbox_inbox")
    store.connection.execute(
        "INSERT INTO outbox_inbox (consumer, event_id, processed_at) "
        "SELECT 'billing', days, clock_timestamp() - days * interval '1 day' "
        "FROM unnest(array[0, 1, 3, 13, 15, 20, 30]) AS days"
    )
    task = Prune(settings())
    batches = [task.run_once(store)["pruned_inbox"]]
    while task.unfinished:
        batches.append(task.run_once(store)["pruned_inbox"])
    assert batches == [2, 1]
    assert query(store.connection, "SELECT event_id::int FROM outbox_inbox ORDER BY 1") == [0, 1, 3, 13]
    Maintenance([Prune(settings(inbox_retention_seconds=2 * DAY))]).run_all(store)
    assert query(store.connection, "SELECT event_id::int FROM outbox_inbox ORDER BY 1") == [0, 1]


# -- sample -----------------------------------------------------------------------------------------------------------


def test_the_sample_sets_the_gauges(store: Store) -> None:
    insert_rows(store.connection, 3)
    bury_all(store)
    insert_rows(store.connection, 4, due_in="1 hour", attempts=1)
    insert_rows(store.connection, 2, due_in="infinity", ordering_key="k{n}", owner="scheduler")
    insert_rows(store.connection, created_at="2026-01-01")
    metrics = Metrics("scheduler")
    task = SampleGauges(metrics)
    task.run_once(store)
    assert task.latest is not None
    assert task.latest[:5] == (7, 4, 2, 0, 3)
    assert task.latest.oldest_seconds > DAY
    assert task.latest.overdue_seconds > 0
    assert task.latest.pending == read_queue_counts(store).pending
    gauges = (metrics.pending, metrics.retrying, metrics.dead, metrics.oldest_pending_seconds)
    assert [gauge.value for gauge in gauges] == [7, 4, 3, task.latest.oldest_seconds]


def test_an_empty_outbox_has_no_age(store: Store) -> None:
    insert_rows(store.connection, due_in="1 hour", owner="scheduler")  # delayed
    assert store.sample(most=100) == (1, 0, 0, 0, 0, 0.0, 0.0)


def test_a_message_that_is_retried_for_long_has_the_same_age_in_the_gauges_and_in_the_status(store: Store) -> None:
    insert_rows(store.connection, due_in="1 hour", owner="scheduler", attempts=3, created_at="2026-01-01")
    sample, status = store.sample(most=100), read_queue_counts(store)
    assert status.oldest_seconds is not None
    assert sample.oldest_seconds == pytest.approx(status.oldest_seconds, abs=60)
    assert sample.oldest_seconds > DAY
    assert (sample.overdue_seconds, status.overdue_seconds) == (0, None)


def test_large_counts_are_estimates_and_never_less_than_what_was_seen(store: Store) -> None:
    insert_rows(store.connection, 50)
    assert store.sample(most=10).pending >= 10
    store.connection.execute("ANALYZE outbox")
    assert store.sample(most=10).pending == 50


# -- the schedule ----------------------------------------------------------------------------------------------------


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class CountingTask(MaintenanceTask):
    name = "counting"
    interval_seconds = 5.0

    def __init__(self) -> None:
        self.runs = 0

    def run_once(self, store: Store) -> dict[str, int]:
        self.runs += 1
        return {}


def test_a_task_runs_at_its_interval_and_sooner_while_it_has_more_to_do(store: Store) -> None:
    clock, task = Clock(), CountingTask()
    maintenance = Maintenance([task], clock)
    maintenance.run_due(store)
    maintenance.run_due(store)
    assert task.runs == 1
    assert maintenance.seconds_until_due() == 5.0
    clock.now += 5
    task.unfinished = True
    maintenance.run_due(store)
    clock.now += 0.2
    task.unfinished = False
    maintenance.run_due(store)
    assert task.runs == 3
    maintenance.run_soon(task, 0.5)
    assert maintenance.seconds_until_due() == 0.5
    maintenance.run_soon(task, 3.0)
    assert maintenance.seconds_until_due() == 0.5


def test_a_task_that_fails_does_not_stop_the_others(store: Store) -> None:
    store.connection.execute("ALTER TABLE outbox_archive RENAME TO elsewhere")
    try:
        failing, other = Prune(settings(archive_retention_seconds=DAY)), CountingTask()
        Maintenance([failing, other]).run_due(store)
    finally:
        store.connection.execute("ALTER TABLE elsewhere RENAME TO outbox_archive")
    assert other.runs == 1


def test_a_scheduler_shows_its_presence_and_deletes_its_row_when_it_stops(store: Store) -> None:
    health = Health()
    health.set_ready("active")
    presence = ShowPresence("scheduler", "s1", health)
    presence.run_once(store)
    presence.run_once(store)
    assert query(store.connection, "SELECT kind, name, role FROM outbox_worker") == [("scheduler", "s1", "active")]
    presence.leave(store)
    assert query(store.connection, "SELECT name FROM outbox_worker") == []


# -- dead letters -----------------------------------------------------------------------------------------------------


def test_replayed_messages_are_new_rows_of_the_relay_with_their_event_id_and_no_attempts(store: Store) -> None:
    insert_rows(store.connection, 3, ordering_key="k", attempts=4, headers='{"n": 1}', routing_key="r{n}")
    before = query(store.connection, "SELECT event_id, routing_key FROM outbox ORDER BY id")
    dead = bury_all(store)
    assert dead_letters.replay(store, DeadLetterSelection(), batch_size=2) == ReplayResult(3, 0)
    assert ids_in(store.connection, "outbox_dead_letter") == []
    assert query(store.connection, "SELECT event_id, routing_key FROM outbox ORDER BY id") == before
    assert min(ids_in(store.connection)) > max(dead)
    facts = query(
        store.connection, "SELECT DISTINCT attempts, owner, claimed_by, last_error, headers::text FROM outbox"
    )
    assert facts == [(0, "relay", None, None, '{"n": 1}')]


def test_a_selection_narrows_a_replay(store: Store) -> None:
    insert_rows(store.connection, 2, event_type="order.placed")
    insert_rows(store.connection, 2, event_type="order_placed")
    insert_rows(store.connection, 2, event_type="invoice.sent")
    ids = bury_all(store)
    assert dead_letters.replay(store, DeadLetterSelection(ids=[])) == ReplayResult(0, 0)
    assert dead_letters.replay(store, DeadLetterSelection(ids=[ids[0], -1])) == ReplayResult(1, 0)
    assert dead_letters.replay(store, DeadLetterSelection(event_type="order_*")) == ReplayResult(2, 0)
    assert dead_letters.replay(store, DeadLetterSelection(event_type="*.?ent", reason="expired")) == ReplayResult(0, 0)
    assert dead_letters.replay(store, DeadLetterSelection(older_than_seconds=DAY)) == ReplayResult(0, 0)
    assert dead_letters.replay(store, DeadLetterSelection(event_type="*.?ent", reason="max attempts")) == ReplayResult(
        2, 0
    )
    assert [letter.id for letter in dead_letters.newest_first(store, DeadLetterSelection())] == [ids[1]]


def test_a_message_whose_dedup_key_is_pending_again_stays_a_dead_letter(store: Store) -> None:
    insert_rows(store.connection, 1, dedup_key="once")
    (older,) = bury_all(store)
    insert_rows(store.connection, 1, dedup_key="once")
    assert dead_letters.replay(store, DeadLetterSelection())[:2] == (0, 1)
    (newer,) = bury_all(store)
    assert newer > older
    assert dead_letters.replay(store, DeadLetterSelection())[:2] == (1, 1)
    assert ids_in(store.connection, "outbox_dead_letter") == [older]


def test_an_expired_message_that_is_replayed_can_be_sent(store: Store) -> None:
    insert_rows(store.connection, expires_at="2020-01-01")
    Expire(Metrics("scheduler")).run_once(store)
    assert dead_letters.replay(store, DeadLetterSelection(reason="expired")) == ReplayResult(1, 0)
    assert query(store.connection, "SELECT expires_at FROM outbox") == [None]


def test_dead_letters_are_discarded_and_purged_by_age_and_type(store: Store) -> None:
    insert_rows(store.connection, 2, event_type="a")
    insert_rows(store.connection, 3, event_type="b")
    ids = bury_all(store)
    assert dead_letters.discard(store, DeadLetterSelection(older_than_seconds=DAY)) == 0
    store.connection.execute(
        "UPDATE outbox_dead_letter SET died_at = died_at - interval '2 days' WHERE id <> %s", ids[:1]
    )
    assert dead_letters.discard(store, DeadLetterSelection(older_than_seconds=DAY, event_type="a")) == 1
    assert dead_letters.discard(store, DeadLetterSelection(ids=ids[3:]), batch_size=1) == 2
    assert dead_letters.discard(store, DeadLetterSelection(older_than_seconds=DAY)) == 1
    assert [letter.id for letter in dead_letters.newest_first(store, DeadLetterSelection())] == ids[:1]
    assert dead_letters.discard(store, DeadLetterSelection()) == 1


# -- privileges -------------------------------------------------------------------------------------------------------


@pytest.fixture
def scheduler_role(store: Store) -> Iterator[str]:
    jobs = ("producer", "relay", "scheduler", "consumer", "observer")
    roles = {name: f"test_{name}_{uuid.uuid4().hex[:8]}" for name in jobs}
    store.connection.execute(script("roles.sql", schema="public", **roles))
    yield roles["scheduler"]
    store.connection.execute("RESET ROLE")
    names = sql.SQL(", ").join(map(sql.Identifier, roles.values()))
    store.connection.execute(sql.SQL("DROP OWNED BY {}").format(names))
    store.connection.execute(sql.SQL("DROP ROLE {}").format(names))


def test_the_role_of_the_scheduler_has_all_privileges_that_it_needs(store: Store, scheduler_role: str) -> None:
    ids = insert_rows(store.connection, 6, ordering_key="k{n}", expires_at="2120-01-01")
    insert_rows(store.connection, owner="scheduler", expires_at="2020-01-01")
    store.connection.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(scheduler_role)))
    assert Expire(Metrics("scheduler")).run_once(store) == {"expired": 1}
    messages, _ = store.claim_due("s/1", batch_size=100, lease_seconds=60)
    assert [message.id for message in messages] == ids
    store.settle(ids[:1], claim="s/1")
    store.settle(ids[1:2], claim="s/1", archive=True)
    store.fail([Retry(ids[2], "no", 1.0)], claim="s/1")
    store.bury([Burial(ids[3], "rejected", "no", 1)], claim="s/1")
    store.defer(ids[4:5], claim="s/1", cooldown_seconds=1)
    store.release(ids[5:], claim="s/1")
    store.next_due()
    retention = {"archive_retention_seconds": DAY, "dead_letter_retention_seconds": DAY}
    tasks: list[MaintenanceTask] = [
        ShowPresence("scheduler", "s1", Health()),
        Unpark(),
        Prune(settings(**retention)),
        SampleGauges(Metrics("scheduler")),
    ]
    for task in tasks:
        task.run_once(store)
    assert dead_letters.replay(store, DeadLetterSelection(reason="rejected")) == ReplayResult(1, 0)
    assert dead_letters.discard(store, DeadLetterSelection()) == 1
    ShowPresence("scheduler", "s1", Health()).leave(store)


# -- settings ---------------------------------------------------------------------------------------------------------


def test_a_lease_that_a_send_could_outlast_is_refused() -> None:
    with pytest.raises(SettingsError, match="lease_seconds: must be longer than send_timeout_seconds"):
        settings(lease_seconds=5, send_timeout_seconds=5)
    with pytest.raises(SettingsError, match="lease_seconds"):
        settings(send_timeout_seconds=70)
