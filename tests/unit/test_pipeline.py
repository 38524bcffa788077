from __future__ import annotations

from typing import Any

from outrider.cdc_relay.lsn import Lsn
from outrider.cdc_relay.pipeline import Delivered, Failed, HandOver, Pipeline, Settlement
from outrider.cdc_relay.window import Window
from outrider.delivery.outcome import Outcome
from outrider.delivery.retry_policy import RetryPolicy
from outrider.failures import Failure, FailureKind
from outrider.storage.message import Message
from outrider.storage.store import Burial, Refusal
from tests.fixtures.messages import NOW, make_message

SECOND = 1_000_000

REFUSED = Failure(FailureKind.FAILED, "NoRoute", "no route")
UNDECODABLE = Failure(FailureKind.PERMANENT, "Undecodable", "not a message")
OUTAGE = Failure(FailureKind.OUTAGE, "ConnectionLost", "gone")


def row(number: int, **columns: Any) -> Message:
    """As the relay reads it right after its insert: its own for another thirty seconds."""
    defaults = {"event_type": "test.happened", "next_attempt_at": NOW + 30 * SECOND}
    return make_message(id=number, **{**defaults, **columns})


def make_pipeline(max_attempts: int = 5) -> Pipeline:
    policy = RetryPolicy(max_attempts, 120, 3600, jitter=lambda: 0.0)
    return Pipeline(Window(max_messages=100, max_bytes=10**6), policy, margin_seconds=10)


def read(pipeline: Pipeline, *messages: Message, free: tuple[str, ...] = ()) -> list[Message]:
    """One transaction; returns what of it was the relay's."""
    pipeline.window.begin(7, NOW)
    rows = [message for message in messages if pipeline.read(message, NOW)]
    pipeline.window.commit(Lsn(pipeline.window.confirmed + 100))
    pipeline.admit(rows, free, NOW)
    return rows


def settle(pipeline: Pipeline) -> list[Settlement]:
    work = pipeline.take_settle()
    pipeline.settled([item.id for item in work])
    return work


def ids(messages: list[Message]) -> list[int]:
    return [message.id for message in messages]


def test_messages_without_a_key_go_out_at_once_and_leave_when_settled() -> None:
    pipeline = make_pipeline()
    one, two = row(1), row(2)
    read(pipeline, one, two)
    assert pipeline.take_publish() == [one, two]
    pipeline.resolved([Outcome(one, None), Outcome(two, None)], NOW)
    assert pipeline.take_settle() == [Delivered(1, 7), Delivered(2, 7)]
    assert pipeline.window.confirmed == 0
    pipeline.settled([1, 2])
    assert pipeline.window.confirmed == 100


def test_rows_that_are_not_the_relays_are_left_and_block_their_key() -> None:
    pipeline = make_pipeline()
    assert not read(
        pipeline,
        row(1, owner="scheduler", ordering_key="delayed"),
        row(2, schema_version=99, ordering_key="newer"),
        row(3, next_attempt_at=NOW + 10 * SECOND, ordering_key="late"),
    )
    assert pipeline.blocked == {"delayed", "newer", "late"}
    assert not pipeline.take_publish()
    assert pipeline.window.confirmed == 100


def test_one_message_of_a_key_at_a_time() -> None:
    pipeline = make_pipeline()
    rows = [row(number, ordering_key="k") for number in (1, 2, 3)]
    read(pipeline, *rows)
    for each in rows:
        assert pipeline.take_publish() == [each]
        pipeline.resolved([Outcome(each, None)], NOW)
    assert not pipeline.take_publish()


def test_what_waits_behind_a_failure_is_handed_over_and_the_key_is_blocked() -> None:
    pipeline = make_pipeline()
    rows = [row(number, ordering_key="k") for number in (1, 2, 3)]
    read(pipeline, *rows)
    pipeline.take_publish()
    pipeline.resolved([Outcome(rows[0], REFUSED)], NOW)
    refusal = Refusal(1, "no route", 120.0)
    assert pipeline.take_settle() == [Failed(1, 7, "test.happened", refusal), HandOver(2, 7), HandOver(3, 7)]
    assert not pipeline.take_publish()
    assert pipeline.blocked == {"k"}


def test_a_blocked_key_is_not_looked_up_while_a_row_of_its_own_is_not_settled() -> None:
    pipeline = make_pipeline()
    first, second = row(1, ordering_key="k"), row(2, ordering_key="k")
    read(pipeline, first)
    pipeline.take_publish()
    pipeline.resolved([Outcome(first, REFUSED)], NOW)
    assert pipeline.heads_of_blocked_keys([second]) == {}
    settle(pipeline)
    assert pipeline.heads_of_blocked_keys([second, row(3, ordering_key="k")]) == {"k": 2}


def test_a_key_that_is_free_again_is_sent_and_one_that_is_not_is_handed_over() -> None:
    pipeline = make_pipeline()
    pipeline.blocked = {"free", "blocked"}
    free, blocked = row(1, ordering_key="free"), row(2, ordering_key="blocked")
    read(pipeline, free, blocked, free=("free",))
    assert pipeline.take_publish() == [free]
    assert pipeline.take_settle() == [HandOver(2, 7)]


def test_while_catching_up_rows_that_are_gone_are_dropped_and_the_schedulers_block_their_key() -> None:
    pipeline = make_pipeline()
    rows = [row(number, ordering_key=f"k{number}") for number in (1, 2, 3)]
    pipeline.window.begin(7, NOW)
    for each in rows:
        assert pipeline.read(each, NOW)
    pipeline.window.commit(Lsn(100))
    assert ids(pipeline.drop_disowned(rows, {2: "scheduler", 3: "relay"})) == [3]
    assert pipeline.blocked == {"k2"}
    assert len(pipeline.window) == 1


def test_an_outage_hands_over_without_a_failure() -> None:
    pipeline = make_pipeline()
    one = row(1)
    read(pipeline, one)
    pipeline.resolved([Outcome(one, OUTAGE)], NOW)
    assert pipeline.take_settle() == [HandOver(1, 7)]


def test_the_last_attempt_and_the_undecodable_are_buried() -> None:
    pipeline = make_pipeline(max_attempts=1)
    one, two = row(1), row(2)
    read(pipeline, one, two)
    pipeline.resolved([Outcome(one, REFUSED), Outcome(two, UNDECODABLE)], NOW)
    verdicts = [item.verdict for item in pipeline.take_settle() if isinstance(item, Failed)]
    assert verdicts == [Burial(1, "max attempts", "no route", 1), Burial(2, "undecodable", "not a message", 0)]


def test_abandoning_hands_over_everything_unconfirmed_and_late_answers_are_ignored() -> None:
    pipeline = make_pipeline()
    rows = [row(1, ordering_key="k"), row(2, ordering_key="k"), row(3)]
    read(pipeline, *rows)
    pipeline.take_publish()
    pipeline.abandon()
    assert sorted(item.id for item in settle(pipeline)) == [1, 2, 3]
    assert pipeline.resolved([Outcome(rows[0], None)], NOW) == []
    assert not pipeline.take_settle()
    assert pipeline.window.idle


def test_a_message_that_waited_too_long_behind_its_key_is_left_to_the_scheduler() -> None:
    pipeline = make_pipeline()
    rows = [row(number, ordering_key="k") for number in (1, 2)]
    read(pipeline, *rows)
    pipeline.take_publish()
    pipeline.resolved([Outcome(rows[0], None)], NOW + 25 * SECOND)
    assert not pipeline.take_publish()
    assert pipeline.take_settle() == [Delivered(1, 7), HandOver(2, 7)]


def test_an_expired_message_is_handed_over_with_what_follows_it_and_not_sent() -> None:
    pipeline = make_pipeline()
    read(
        pipeline,
        row(1, expires_at=NOW),
        row(2, expires_at=NOW + 1),
        row(3, ordering_key="k", expires_at=NOW - SECOND),
        row(4, ordering_key="k"),
    )
    assert ids(pipeline.take_publish()) == [2]
    assert settle(pipeline) == [HandOver(1, 7), HandOver(3, 7), HandOver(4, 7)]


def test_blocked_keys_that_the_table_does_not_hold_are_forgotten() -> None:
    pipeline = make_pipeline()
    one = row(1, ordering_key="leaving")
    read(pipeline, one)
    pipeline.resolved([Outcome(one, REFUSED)], NOW)
    pipeline.blocked |= {"gone", "there"}
    pipeline.forget_unblocked({"there"})
    assert pipeline.blocked == {"there", "leaving"}


def test_confirms_can_wait_while_no_message_waits_for_one() -> None:
    pipeline = make_pipeline()
    first, second = row(1, ordering_key="k"), row(2, ordering_key="k")
    can_wait = {"none is to come": pipeline.can_wait_for_confirms}
    read(pipeline, first)
    pipeline.take_publish()
    can_wait["one is to come"] = pipeline.can_wait_for_confirms
    read(pipeline, second)
    can_wait["the second waits for it"] = pipeline.can_wait_for_confirms
    pipeline.resolved([Outcome(first, None)], NOW)
    can_wait["the second's is to come"] = pipeline.can_wait_for_confirms
    pipeline.resolved([Outcome(second, None)], NOW)
    can_wait["all have come"] = pipeline.can_wait_for_confirms
    assert [case for case, can in can_wait.items() if can] == ["one is to come", "the second's is to come"]
