"""WakeableQueue: items arrive, a put wakes the reader, and an empty queue is not readable."""

from __future__ import annotations

import select
import threading
import time
from typing import Any

import pytest

from outrider.runtime.wakeable_queue import WakeableQueue


@pytest.fixture
def queue() -> Any:
    queue: WakeableQueue[int] = WakeableQueue()
    yield queue
    queue.close()


def is_readable(queue: WakeableQueue[int]) -> bool:
    return bool(select.select([queue], [], [], 0)[0])


def test_a_put_wakes_and_a_take_empties(queue: WakeableQueue[int]) -> None:
    queue.put([1, 2])
    queue.put([3])
    assert is_readable(queue)
    assert queue.take() == [1, 2, 3]
    assert not is_readable(queue)


def test_a_queue_with_items_left_stays_readable(queue: WakeableQueue[int]) -> None:
    queue.put([1, 2, 3])
    assert queue.take(2) == [1, 2]
    assert is_readable(queue)
    assert queue.take(2) == [3]
    assert not is_readable(queue)


class TakesDuringPut:
    """A writer whose reader calls take() at the worst moment: the items are there and the byte is not."""

    def __init__(self, queue: WakeableQueue[int]) -> None:
        self._socket = queue._writer
        self.taken: list[int] = []
        self.reader = threading.Thread(target=lambda: self.taken.extend(queue.take()))

    def send(self, data: bytes) -> int:
        self.reader.start()
        self.reader.join(0.2)  # the lock makes it wait until the put is done
        return self._socket.send(data)

    def close(self) -> None:
        self._socket.close()


def test_a_take_during_a_put_leaves_no_byte_that_would_wake_the_reader_for_ever(queue: WakeableQueue[int]) -> None:
    writer = TakesDuringPut(queue)
    queue._writer = writer  # type: ignore[assignment]
    queue.put([1])
    writer.reader.join()
    assert writer.taken == [1]
    assert not is_readable(queue)


def test_no_item_is_lost_between_threads_and_the_reader_does_not_sleep_while_there_are_items(
    queue: WakeableQueue[int],
) -> None:
    count, writers = 10_000, 3

    def write() -> None:
        for number in range(count):
            queue.put([number])

    threads = [threading.Thread(target=write) for _ in range(writers)]
    for thread in threads:
        thread.start()
    taken: list[int] = []
    while len(taken) < count * writers:
        started = time.monotonic()
        queue.wait(10)
        assert time.monotonic() - started < 10, "the reader slept although an item was put"
        taken += queue.take(7)
    for thread in threads:
        thread.join()
    assert sorted(taken) == sorted([*range(count)] * writers)
    assert not is_readable(queue)
