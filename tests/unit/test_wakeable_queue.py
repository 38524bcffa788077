"""WakeableQueue: what is put arrives, the reader is woken, and a mailbox that is empty does not look full."""

from __future__ import annotations

import select
import threading
import time
from typing import Any

import pytest

from outrider.runtime.wakeable_queue import WakeableQueue


@pytest.fixture
def mailbox() -> Any:
    mailbox: WakeableQueue[int] = WakeableQueue()
    yield mailbox
    mailbox.close()


def is_readable(mailbox: WakeableQueue[int]) -> bool:
    return bool(select.select([mailbox], [], [], 0)[0])


def test_a_put_wakes_and_a_take_empties(mailbox: WakeableQueue[int]) -> None:
    mailbox.put([1, 2])
    mailbox.put([3])
    assert is_readable(mailbox)
    assert mailbox.take() == [1, 2, 3]
    assert not is_readable(mailbox)


def test_what_a_limit_leaves_keeps_it_readable(mailbox: WakeableQueue[int]) -> None:
    mailbox.put([1, 2, 3])
    assert mailbox.take(2) == [1, 2]
    assert is_readable(mailbox)
    assert mailbox.take(2) == [3]
    assert not is_readable(mailbox)


class InBetween:
    """A writer whose reader looks at the worst moment: when the items are there and the byte is not."""

    def __init__(self, mailbox: WakeableQueue[int]) -> None:
        self._socket = mailbox._writer
        self.taken: list[int] = []
        self.reader = threading.Thread(target=lambda: self.taken.extend(mailbox.take()))

    def send(self, data: bytes) -> int:
        self.reader.start()
        self.reader.join(0.2)  # or as long as it is made to wait
        return self._socket.send(data)

    def close(self) -> None:
        self._socket.close()


def test_a_look_in_the_middle_of_a_put_leaves_no_byte_behind_that_wakes_forever(mailbox: WakeableQueue[int]) -> None:
    writer = InBetween(mailbox)
    mailbox._writer = writer  # type: ignore[assignment]
    mailbox.put([1])
    writer.reader.join()
    assert writer.taken == [1]
    assert not is_readable(mailbox)


def test_nothing_is_lost_between_threads_and_nobody_sleeps_on_a_full_mailbox(mailbox: WakeableQueue[int]) -> None:
    count, writers = 10_000, 3

    def write() -> None:
        for number in range(count):
            mailbox.put([number])

    threads = [threading.Thread(target=write) for _ in range(writers)]
    for thread in threads:
        thread.start()
    taken: list[int] = []
    while len(taken) < count * writers:
        started = time.monotonic()
        mailbox.wait(10)
        assert time.monotonic() - started < 10, "asleep although something was put"
        taken += mailbox.take(7)
    for thread in threads:
        thread.join()
    assert sorted(taken) == sorted([*range(count)] * writers)
    assert not is_readable(mailbox)
