"""The checker against made-up histories: what keeps the promises passes, and each broken promise is reported."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.faults.checker import REPEATS_AFTER_SECONDS, check
from tests.faults.consumer import LINE_BYTES, line
from tests.faults.history import Committed, DeadLetter, Delivery, FaultRecord, History, Memory

KILL = FaultRecord("SIGKILL of a service", "relay-a", began=10.0, ended=12.0, repeats=True)

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
    dead_letters=[DeadLetter("a3", "max attempts", "NoRoute")],
    left={"new": "owner relay"},
    rolled_back=frozenset({"undone"}),
)


def promises(history: History) -> list[str]:
    return [violation.promise for violation in check(history)]


def test_a_history_that_keeps_every_promise_has_no_violation() -> None:
    assert check(GOOD) == []


def without(event_id: str) -> History:
    return replace(GOOD, deliveries=[each for each in GOOD.deliveries if each.event_id != event_id])


def followed_by(*deliveries: Delivery) -> History:
    return replace(GOOD, deliveries=[*GOOD.deliveries, *deliveries])


@pytest.mark.parametrize(
    ("history", "promise", "about"),
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
            "nothing delayed comes early",
            "late",
        ),
        (followed_by(Delivery("a1", 8.0)), "repeats follow a fault that can cause them", "a1"),
        (followed_by(Delivery("a3", 8.0)), "poison is not delivered", "a3"),
        (
            replace(without("a2"), dead_letters=[*GOOD.dead_letters, DeadLetter("a2", "rejected", "Nacked")]),
            "only poison dies",
            "a2",
        ),
        (
            replace(GOOD, dead_letters=[DeadLetter("a3", "", None)]),
            "a dead letter has a reason",
            "a3",
        ),
        (replace(without("a2"), left={**GOOD.left, "a2": "due"}), "the table is empty in the end", "a2"),
        (
            replace(GOOD, left={}, dead_letters=[*GOOD.dead_letters, DeadLetter("new", "expired", None)]),
            "rows of an unknown version are left alone",
            "new",
        ),
    ],
)
def test_each_broken_promise_is_reported_with_its_message(history: History, promise: str, about: str) -> None:
    assert (promise, about) in [(violation.promise, violation.event_id) for violation in check(history)]


def test_a_message_that_comes_twice_is_excused_by_a_fault_around_it() -> None:
    before = followed_by(Delivery("a1", KILL.began - 0.1))
    during = followed_by(Delivery("a1", KILL.began + 0.1))
    assert promises(before) == ["repeats follow a fault that can cause them"]
    assert promises(during) == []


def test_the_excuse_ends_a_while_after_the_fault_was_healed() -> None:
    over = KILL.ended + REPEATS_AFTER_SECONDS
    late = Committed("b", "plain", KILL.ended)
    history = replace(GOOD, committed=[*GOOD.committed, late])
    excused = [*GOOD.deliveries, Delivery("b", over - 0.1), Delivery("b", over + 1)]
    unexcused = [*GOOD.deliveries, Delivery("b", over + 0.1), Delivery("b", over + 1)]
    assert promises(replace(history, deliveries=excused)) == []
    assert promises(replace(history, deliveries=unexcused)) == ["repeats follow a fault that can cause them"]


def test_a_fault_that_repeats_nothing_excuses_nothing() -> None:
    gentle = replace(KILL, name="SIGTERM of a service", repeats=False)
    twice = replace(followed_by(Delivery("a1", 11.0)), faults=[gentle])
    assert promises(twice) == ["repeats follow a fault that can cause them"]


def test_a_later_repeat_of_an_earlier_message_is_no_disorder() -> None:
    assert promises(followed_by(Delivery("a1", 10.5), Delivery("a2", 10.6))) == []


@pytest.mark.parametrize("memory", [Memory("relay", 60, 50, 150, 150), Memory("relay", 60, 50, 50, 1000)])
def test_memory_that_grows_or_peaks_is_reported(memory: Memory) -> None:
    assert promises(replace(GOOD, memory=[memory])) == ["memory is flat"]
    assert promises(replace(GOOD, memory=[Memory("relay", 60, 50, 60, 90)])) == []


def test_a_remark_is_a_violation() -> None:
    assert promises(replace(GOOD, remarks=["relay-a ended with 1 after SIGTERM"])) == ["all is quiet in the end"]


def test_the_consumers_notes_have_lines_of_one_length() -> None:
    lines = [line(0.1, "a", False), line(123456.789, "8c1f2d0e-0000-4000-8000-000000000000", True)]
    assert {len(each) for each in lines} == {LINE_BYTES}
