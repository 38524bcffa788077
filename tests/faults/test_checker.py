"""The checker with invented histories: a correct one has no violation, and each broken rule is reported."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.faults.checker import DUPLICATES_AFTER_SECONDS, check
from tests.faults.consumer import LINE_BYTES, line
from tests.faults.history import Committed, DeadLetterRecord, Delivery, FaultRecord, History, Memory

KILL = FaultRecord("SIGKILL of a service", "relay-a", began=10.0, ended=12.0, causes_duplicates=True)

GOOD = History(
    committed=[
        Committed("a1", "ordered", 1.0, "a", 1),
        Committed("a2", "ordered", 2.0, "a", 2),
        Committed("a3", "poison.unroutable", 3.0, "a", 3),
        Committed("a4", "ordered", 4.0, "a", 4),
        Committed("late", "delayed", 4.0, not_before=6.0),
        Committed("new", "future", 5.0),
    ],
    deliveries=[
        Delivery("a1", 1.1),
        Delivery("a2", 2.1),
        Delivery("a4", 4.1),
        Delivery("late", 6.0),
    ],
    faults=[KILL],
    dead_letters=[DeadLetterRecord("a3", "max attempts", "NoRoute")],
    left={"new": "owner relay"},
    rolled_back=frozenset({"undone"}),
)


def broken_rules(history: History) -> list[str]:
    return [violation.rule for violation in check(history)]


def test_a_correct_history_has_no_violation() -> None:
    assert check(GOOD) == []


def without(event_id: str) -> History:
    return replace(GOOD, deliveries=[each for each in GOOD.deliveries if each.event_id != event_id])


def followed_by(*deliveries: Delivery) -> History:
    return replace(GOOD, deliveries=[*GOOD.deliveries, *deliveries])


@pytest.mark.parametrize(
    ("history", "rule", "about"),
    [
        (without("a2"), "nothing is lost", "a2"),
        (replace(GOOD, dead_letters=[]), "nothing is lost", "a3"),
        (followed_by(Delivery("undone", 7.0)), "nothing is delivered that was not committed", "undone"),
        (followed_by(Delivery("stranger", 7.0)), "nothing is delivered that was not committed", "stranger"),
        (
            replace(without("a1"), deliveries=[*without("a1").deliveries, Delivery("a1", 7.0)]),
            "order is kept per key",
            "a1",
        ),
        (
            replace(without("late"), deliveries=[*without("late").deliveries, Delivery("late", 5.5)]),
            "a delayed message is not delivered early",
            "late",
        ),
        (followed_by(Delivery("a1", 8.0)), "duplicates follow a fault that can cause them", "a1"),
        (followed_by(Delivery("a3", 8.0)), "poison is not delivered", "a3"),
        (
            replace(without("a2"), dead_letters=[*GOOD.dead_letters, DeadLetterRecord("a2", "rejected", "Nacked")]),
            "only poison is buried",
            "a2",
        ),
        (
            replace(GOOD, dead_letters=[DeadLetterRecord("a3", "", None)]),
            "a dead letter has a reason",
            "a3",
        ),
        (replace(without("a2"), left={**GOOD.left, "a2": "due"}), "the table is empty at the end", "a2"),
        (
            replace(GOOD, left={}, dead_letters=[*GOOD.dead_letters, DeadLetterRecord("new", "expired", None)]),
            "rows of an unknown version stay in the table",
            "new",
        ),
    ],
)
def test_each_broken_rule_is_reported_with_its_message(history: History, rule: str, about: str) -> None:
    assert (rule, about) in [(violation.rule, violation.event_id) for violation in check(history)]


def test_a_fault_at_the_same_time_explains_a_duplicate() -> None:
    before = followed_by(Delivery("a1", KILL.began - 0.1))
    during = followed_by(Delivery("a1", KILL.began + 0.1))
    assert broken_rules(before) == ["duplicates follow a fault that can cause them"]
    assert broken_rules(during) == []


def test_a_fault_explains_duplicates_only_for_a_limited_time() -> None:
    over = KILL.ended + DUPLICATES_AFTER_SECONDS
    late = Committed("b", "plain", KILL.ended)
    history = replace(GOOD, committed=[*GOOD.committed, late])
    explained = [*GOOD.deliveries, Delivery("b", over - 0.1), Delivery("b", over + 1)]
    unexplained = [*GOOD.deliveries, Delivery("b", over + 0.1), Delivery("b", over + 1)]
    assert broken_rules(replace(history, deliveries=explained)) == []
    assert broken_rules(replace(history, deliveries=unexplained)) == ["duplicates follow a fault that can cause them"]


def test_a_fault_that_causes_no_duplicates_explains_none() -> None:
    stop = replace(KILL, name="SIGTERM of a service", causes_duplicates=False)
    twice = replace(followed_by(Delivery("a1", 11.0)), faults=[stop])
    assert broken_rules(twice) == ["duplicates follow a fault that can cause them"]


def test_a_later_duplicate_of_an_earlier_message_does_not_break_the_order() -> None:
    assert broken_rules(followed_by(Delivery("a1", 10.5), Delivery("a2", 10.6))) == []


@pytest.mark.parametrize("memory", [Memory("relay", 60, 50, 150, 150), Memory("relay", 60, 50, 50, 1000)])
def test_memory_that_grows_or_peaks_is_reported(memory: Memory) -> None:
    assert broken_rules(replace(GOOD, memory=[memory])) == ["memory does not grow"]
    assert broken_rules(replace(GOOD, memory=[Memory("relay", 60, 50, 60, 90)])) == []


def test_a_recorded_problem_is_a_violation() -> None:
    assert broken_rules(replace(GOOD, problems=["relay-a ended with 1 after SIGTERM"])) == [
        "the run ends without other problems"
    ]


def test_all_lines_of_a_deliveries_file_have_the_same_length() -> None:
    lines = [line(0.1, "a", False), line(123456.789, "8c1f2d0e-0000-4000-8000-000000000000", True)]
    assert {len(each) for each in lines} == {LINE_BYTES}
