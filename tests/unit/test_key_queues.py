"""KeyQueues: at most one unconfirmed message per ordering key, in order, and none forgotten."""

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
    lanes = KeyQueues()
    first, second = messages_of(None, 2)
    assert lanes.admit(first)
    assert lanes.admit(second)
    assert lanes.confirmed(first) is None
    assert lanes.failed(second) == []
    assert lanes.waiting == 0


def test_a_second_message_of_a_key_waits_for_the_first() -> None:
    lanes = KeyQueues()
    first, second, third = messages_of("order-1", 3)
    assert lanes.admit(first)
    assert not lanes.admit(second)
    assert not lanes.admit(third)
    assert lanes.waiting == 2
    assert lanes.confirmed(first) == second
    assert lanes.confirmed(second) == third
    assert lanes.confirmed(third) is None
    assert lanes.waiting == 0
    assert lanes.admit(make_message(ordering_key="order-1"))


def test_keys_do_not_wait_for_each_other() -> None:
    lanes = KeyQueues()
    assert lanes.admit(make_message(ordering_key="order-1"))
    assert lanes.admit(make_message(ordering_key="order-2"))


def test_a_failure_gives_back_everything_behind_it_and_frees_the_key() -> None:
    lanes = KeyQueues()
    first, second, third = messages_of("order-1", 3)
    for message in (first, second, third):
        lanes.admit(message)
    assert lanes.failed(first) == [second, third]
    assert lanes.waiting == 0
    assert lanes.admit(second)


def test_draining_gives_back_what_waits_and_nothing_that_was_sent() -> None:
    lanes = KeyQueues()
    ones, twos = messages_of("order-1", 3), messages_of("order-2", 2)
    for message in (*ones, *twos):
        lanes.admit(message)
    assert lanes.drain() == [*ones[1:], *twos[1:]]
    assert lanes.waiting == 0
    assert lanes.confirmed(ones[0]) is None
    assert lanes.failed(twos[0]) == []


@given(st.lists(st.tuples(st.sampled_from(["admit", "confirm", "fail"]), st.sampled_from(["a", "b", None]))))
def test_whatever_happens_each_key_has_one_message_on_its_way_and_keeps_its_order(
    steps: list[tuple[str, str | None]],
) -> None:
    lanes = KeyQueues()
    on_its_way: dict[str | None, list[Message]] = defaultdict(list)
    behind: dict[str | None, list[Message]] = defaultdict(list)
    for step, key in steps:
        if step == "admit":
            message = make_message(ordering_key=key)
            (on_its_way if lanes.admit(message) else behind)[key].append(message)
        elif on_its_way[key]:
            answered = on_its_way[key].pop(0)
            if step == "confirm":
                following = lanes.confirmed(answered)
                expected = behind[key].pop(0) if behind[key] else None
                assert following == expected
                if following is not None:
                    on_its_way[key].append(following)
            else:
                assert lanes.failed(answered) == behind[key]
                behind[key].clear()
        assert all(len(on_its_way[each]) <= 1 for each in ("a", "b"))
        assert behind[None] == []
        assert lanes.waiting == sum(map(len, behind.values()))
