"""KeyQueues: at most one unconfirmed message per ordering key, in order, and none lost."""

from __future__ import annotations

from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from outrider.delivery.key_queues import KeyQueues
from outrider.storage.message import Message
from tests.fixtures.messages import make_message


def messages_of(key: str | None, count: int) -> list[Message]:
    return [make_message(ordering_key=key) for _ in range(count)]


def test_messages_without_a_key_never_wait() -> None:
    queues = KeyQueues()
    first, second = messages_of(None, 2)
    assert queues.admit(first)
    assert queues.admit(second)
    assert queues.confirmed(first) is None
    assert queues.failed(second) == []
    assert queues.waiting == 0


def test_a_second_message_of_a_key_waits_for_the_first() -> None:
    queues = KeyQueues()
    first, second, third = messages_of("order-1", 3)
    assert queues.admit(first)
    assert not queues.admit(second)
    assert not queues.admit(third)
    assert queues.waiting == 2
    assert queues.confirmed(first) == second
    assert queues.confirmed(second) == third
    assert queues.confirmed(third) is None
    assert queues.waiting == 0
    assert queues.admit(make_message(ordering_key="order-1"))


def test_keys_do_not_wait_for_each_other() -> None:
    queues = KeyQueues()
    assert queues.admit(make_message(ordering_key="order-1"))
    assert queues.admit(make_message(ordering_key="order-2"))


def test_a_failure_returns_everything_behind_it_and_frees_the_key() -> None:
    queues = KeyQueues()
    first, second, third = messages_of("order-1", 3)
    for message in (first, second, third):
        queues.admit(message)
    assert queues.failed(first) == [second, third]
    assert queues.waiting == 0
    assert queues.admit(second)


def test_draining_returns_what_waits_and_nothing_that_was_sent() -> None:
    queues = KeyQueues()
    ones, twos = messages_of("order-1", 3), messages_of("order-2", 2)
    for message in (*ones, *twos):
        queues.admit(message)
    assert queues.drain() == [*ones[1:], *twos[1:]]
    assert queues.waiting == 0
    assert queues.confirmed(ones[0]) is None
    assert queues.failed(twos[0]) == []


@given(st.lists(st.tuples(st.sampled_from(["admit", "confirm", "fail"]), st.sampled_from(["a", "b", None]))))
def test_in_any_sequence_each_key_has_one_message_in_flight_and_keeps_its_order(
    steps: list[tuple[str, str | None]],
) -> None:
    queues = KeyQueues()
    in_flight: dict[str | None, list[Message]] = defaultdict(list)
    behind: dict[str | None, list[Message]] = defaultdict(list)
    for step, key in steps:
        if step == "admit":
            message = make_message(ordering_key=key)
            (in_flight if queues.admit(message) else behind)[key].append(message)
        elif in_flight[key]:
            answered = in_flight[key].pop(0)
            if step == "confirm":
                following = queues.confirmed(answered)
                expected = behind[key].pop(0) if behind[key] else None
                assert following == expected
                if following is not None:
                    in_flight[key].append(following)
            else:
                assert queues.failed(answered) == behind[key]
                behind[key].clear()
        assert all(len(in_flight[each]) <= 1 for each in ("a", "b"))
        assert behind[None] == []
        assert queues.waiting == sum(map(len, behind.values()))
