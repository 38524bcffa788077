from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from outrider.cdc_relay.lsn import Lsn
from outrider.cdc_relay.pipeline import Pipeline
from outrider.cdc_relay.settlements import Delivered, Failed, HandedOver, Settlement, Skipped
from outrider.cdc_relay.window import Window
from outrider.delivery.publisher import Outcome
from outrider.delivery.retry_policy import RetryPolicy
from outrider.failures import Failure, FailureKind
from outrider.storage.decision import Burial, Retry
from outrider.storage.message import Message
from tests.fixtures.messages import NOW, make_message

SECOND = 1_000_000

REFUSED = Failure(FailureKind.FAILED, "Nacked", "no route")
UNDECODABLE = Failure(FailureKind.PERMANENT, "Undecodable", "not a message")
OUTAGE = Failure(FailureKind.OUTAGE, "ConnectionLost", "gone")


def row(number: int, **columns: Any) -> Message:
    """A row right after its insert: the relay owns it for another thirty seconds."""
    defaults = {"event_type": "test.happened", "next_attempt_at": NOW + 30 * SECOND}
    return make_message(id=number, **{**defaults, **columns})


def make_pipeline(max_attempts: int = 5) -> Pipeline:
    policy = RetryPolicy(max_attempts, 120, 3600, jitter=lambda: 0.0)
    return Pipeline(Window(max_messages=100, max_bytes=10**6), policy, margin_seconds=10)


def read(pipeline: Pipeline, *messages: Message, free: tuple[str, ...] = ()) -> list[Message]:
    """Read one transaction; returns its rows that are the relay's."""
    pipeline.window.begin(7, NOW)
    rows = [message for message in messages if pipeline.accept(message, NOW)]
    pipeline.window.commit(Lsn(pipeline.window.confirmed + 100))
    pipeline.admit(rows, free, NOW)
    return rows


def settle(pipeline: Pipeline) -> list[Settlement]:
    work = pipeline.take_settlements()
    pipeline.finish_settled(work)
    return work


def ids(items: Sequence[Message | Settlement]) -> list[int]:
    return [item.id for item in items]


def test_messages_without_a_key_are_published_at_once_and_leave_the_window_when_settled() -> None:
    pipeline = make_pipeline()
    one, two = row(1), row(2)
    read(pipeline, one, two)
    assert pipeline.take_messages_to_publish() == [one, two]
    pipeline.apply_outcomes([Outcome(one, None), Outcome(two, None)], NOW)
    assert pipeline.take_settlements() == [Delivered(1, 7), Delivered(2, 7)]
    assert pipeline.window.confirmed == 0
    pipeline.finish_settled([Delivered(1, 7), Delivered(2, 7)])
    assert pipeline.window.confirmed == 100


def test_rows_that_are_not_the_relays_are_not_accepted_and_block_their_key() -> None:
    pipeline = make_pipeline()
    assert not read(
        pipeline,
        row(1, owner="scheduler", ordering_key="delayed"),
        row(2, schema_version=99, ordering_key="newer"),
        row(3, next_attempt_at=NOW + 10 * SECOND, ordering_key="late"),
    )
    assert pipeline.blocked_keys == {"delayed", "newer", "late"}
    assert not pipeline.take_messages_to_publish()
    assert (pipeline.late_in_a_row, pipeline.take_late(), pipeline.take_late()) == (1, 1, 0)


def test_a_skipped_row_with_a_key_holds_the_position_until_other_sessions_see_it() -> None:
    """Otherwise a relay that starts meanwhile would neither read the row nor find its key in the table."""
    pipeline = make_pipeline()
    read(pipeline, row(1, owner="scheduler", ordering_key="k"), row(2, owner="scheduler"))
    assert pipeline.window.confirmed == 0
    assert pipeline.heads_of_blocked_keys([row(3, ordering_key="k")]) == {}
    assert settle(pipeline) == [Skipped(1, 7)]
    assert pipeline.window.confirmed == 100
    assert pipeline.heads_of_blocked_keys([row(3, ordering_key="k")]) == {"k": 3}


def test_a_second_row_with_the_id_of_one_in_flight_replaces_it_and_both_transactions_end() -> None:
    pipeline = make_pipeline()
    first, behind_first, second = row(1, ordering_key="a"), row(2, ordering_key="a"), row(1, ordering_key="b")
    read(pipeline, first, behind_first)
    assert pipeline.take_messages_to_publish() == [first]
    read(pipeline, second)
    assert pipeline.take_messages_to_publish() == [second]
    assert pipeline.apply_outcomes([Outcome(first, None)], NOW) == []
    assert settle(pipeline) == [HandedOver(2, 7)]
    assert pipeline.window.confirmed == 100
    pipeline.apply_outcomes([Outcome(second, None)], NOW)
    assert settle(pipeline) == [Delivered(1, 7)]
    assert pipeline.window.idle


def test_a_row_that_waits_behind_its_key_is_not_sent_once_another_row_has_its_id() -> None:
    pipeline = make_pipeline()
    rows = [row(number, ordering_key="k") for number in (1, 2, 3)]
    read(pipeline, *rows)
    pipeline.take_messages_to_publish()
    again = row(2)
    read(pipeline, again)
    assert pipeline.take_messages_to_publish() == [again]
    pipeline.apply_outcomes([Outcome(rows[0], None)], NOW)
    assert pipeline.take_messages_to_publish() == [rows[2]]
    pipeline.apply_outcomes([Outcome(again, None), Outcome(rows[2], None)], NOW)
    assert ids(settle(pipeline)) == [1, 2, 3]
    assert pipeline.window.idle


def test_a_settlement_of_the_first_row_with_an_id_does_not_settle_the_second() -> None:
    pipeline = make_pipeline()
    first, second = row(1), row(1)
    read(pipeline, first)
    pipeline.apply_outcomes([Outcome(first, None)], NOW)
    settlements = pipeline.take_settlements()
    pipeline.window.begin(8, NOW)
    assert pipeline.accept(second, NOW)
    pipeline.window.commit(Lsn(200))
    pipeline.admit([second], (), NOW)
    pipeline.finish_settled(settlements)
    assert 1 in pipeline.window
    assert pipeline.window.confirmed == 100


def test_rows_that_come_too_late_are_counted_until_one_is_in_time() -> None:
    pipeline = make_pipeline()
    late = [row(number, next_attempt_at=NOW) for number in (1, 2, 3)]
    read(pipeline, *late)
    assert (pipeline.take_late(), pipeline.late_in_a_row) == (3, 3)
    read(pipeline, row(4))
    assert (pipeline.take_late(), pipeline.late_in_a_row) == (0, 0)


def test_one_message_of_a_key_is_in_flight_at_a_time() -> None:
    pipeline = make_pipeline()
    rows = [row(number, ordering_key="k") for number in (1, 2, 3)]
    read(pipeline, *rows)
    for each in rows:
        assert pipeline.take_messages_to_publish() == [each]
        pipeline.apply_outcomes([Outcome(each, None)], NOW)
    assert not pipeline.take_messages_to_publish()


def test_messages_behind_a_failed_one_are_handed_over_and_the_key_is_blocked() -> None:
    pipeline = make_pipeline()
    rows = [row(number, ordering_key="k") for number in (1, 2, 3)]
    read(pipeline, *rows)
    pipeline.take_messages_to_publish()
    pipeline.apply_outcomes([Outcome(rows[0], REFUSED)], NOW)
    retry = Retry(1, "no route", 120.0)
    assert pipeline.take_settlements() == [Failed(1, 7, "test.happened", retry), HandedOver(2, 7), HandedOver(3, 7)]
    assert not pipeline.take_messages_to_publish()
    assert pipeline.blocked_keys == {"k"}


def test_a_blocked_key_is_not_looked_up_while_a_row_of_it_is_not_settled() -> None:
    pipeline = make_pipeline()
    first, second = row(1, ordering_key="k"), row(2, ordering_key="k")
    read(pipeline, first)
    pipeline.take_messages_to_publish()
    pipeline.apply_outcomes([Outcome(first, REFUSED)], NOW)
    assert pipeline.heads_of_blocked_keys([second]) == {}
    settle(pipeline)
    assert pipeline.heads_of_blocked_keys([second, row(3, ordering_key="k")]) == {"k": 2}


def test_a_row_of_a_free_key_is_published_and_one_of_a_blocked_key_is_handed_over() -> None:
    pipeline = make_pipeline()
    pipeline.blocked_keys = {"free", "blocked"}
    free, blocked = row(1, ordering_key="free"), row(2, ordering_key="blocked")
    read(pipeline, free, blocked, free=("free",))
    assert pipeline.take_messages_to_publish() == [free]
    assert pipeline.take_settlements() == [HandedOver(2, 7)]


def test_rows_that_are_gone_are_dropped_and_rows_of_the_scheduler_block_their_key() -> None:
    pipeline = make_pipeline()
    rows = [row(number, ordering_key=f"k{number}") for number in (1, 2, 3)]
    pipeline.window.begin(7, NOW)
    for each in rows:
        assert pipeline.accept(each, NOW)
    pipeline.window.commit(Lsn(100))
    assert ids(pipeline.drop_rows_not_owned(rows, {2: "scheduler", 3: "relay"})) == [3]
    assert pipeline.blocked_keys == {"k2"}
    assert len(pipeline.window) == 1


def test_an_outage_hands_the_message_over() -> None:
    pipeline = make_pipeline()
    one = row(1)
    read(pipeline, one)
    pipeline.apply_outcomes([Outcome(one, OUTAGE)], NOW)
    assert pipeline.take_settlements() == [HandedOver(1, 7)]


def test_a_message_is_buried_after_its_last_attempt_or_if_it_does_not_decode() -> None:
    pipeline = make_pipeline(max_attempts=1)
    one, two = row(1), row(2)
    read(pipeline, one, two)
    pipeline.apply_outcomes([Outcome(one, REFUSED), Outcome(two, UNDECODABLE)], NOW)
    decisions = [item.decision for item in pipeline.take_settlements() if isinstance(item, Failed)]
    assert decisions == [Burial(1, "max attempts", "no route", 1), Burial(2, "undecodable", "not a message", 0)]


def test_unconfirmed_messages_are_handed_over_and_late_outcomes_are_ignored() -> None:
    pipeline = make_pipeline()
    rows = [row(1, ordering_key="k"), row(2, ordering_key="k"), row(3)]
    read(pipeline, *rows)
    pipeline.take_messages_to_publish()
    pipeline.hand_over_unconfirmed()
    assert sorted(item.id for item in settle(pipeline)) == [1, 2, 3]
    assert pipeline.apply_outcomes([Outcome(rows[0], None)], NOW) == []
    assert not pipeline.take_settlements()
    assert pipeline.window.idle


def test_a_message_that_waited_too_long_behind_its_key_is_handed_over() -> None:
    pipeline = make_pipeline()
    rows = [row(number, ordering_key="k") for number in (1, 2)]
    read(pipeline, *rows)
    pipeline.take_messages_to_publish()
    pipeline.apply_outcomes([Outcome(rows[0], None)], NOW + 25 * SECOND)
    assert not pipeline.take_messages_to_publish()
    assert pipeline.take_settlements() == [Delivered(1, 7), HandedOver(2, 7)]


def test_an_expired_message_is_handed_over_with_those_behind_it() -> None:
    pipeline = make_pipeline()
    read(
        pipeline,
        row(1, expires_at=NOW),
        row(2, expires_at=NOW + 1),
        row(3, ordering_key="k", expires_at=NOW - SECOND),
        row(4, ordering_key="k"),
    )
    assert ids(pipeline.take_messages_to_publish()) == [2]
    assert settle(pipeline) == [HandedOver(1, 7), HandedOver(3, 7), HandedOver(4, 7)]


def test_keys_without_a_row_are_unblocked() -> None:
    pipeline = make_pipeline()
    one = row(1, ordering_key="leaving")
    read(pipeline, one)
    pipeline.apply_outcomes([Outcome(one, REFUSED)], NOW)
    pipeline.blocked_keys |= {"gone", "there"}
    pipeline.unblock_keys({"gone", "leaving"})
    assert pipeline.blocked_keys == {"there", "leaving"}


def test_confirms_can_wait_while_no_message_waits_behind_another() -> None:
    pipeline = make_pipeline()
    first, second = row(1, ordering_key="k"), row(2, ordering_key="k")
    can_wait = {"nothing is in flight": pipeline.confirms_can_wait}
    read(pipeline, first)
    pipeline.take_messages_to_publish()
    can_wait["one is in flight"] = pipeline.confirms_can_wait
    read(pipeline, second)
    can_wait["the second waits behind it"] = pipeline.confirms_can_wait
    pipeline.apply_outcomes([Outcome(first, None)], NOW)
    can_wait["the second is in flight"] = pipeline.confirms_can_wait
    pipeline.apply_outcomes([Outcome(second, None)], NOW)
    can_wait["both are confirmed"] = pipeline.confirms_can_wait
    assert [case for case, can in can_wait.items() if can] == ["one is in flight", "the second is in flight"]
