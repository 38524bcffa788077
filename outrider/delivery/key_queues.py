"""
KeyQueues: at most one unconfirmed message per ordering key.

Pure: no I/O, no clock. A message that may go out now is admitted; one whose key has a message on its way waits, in the
order it came, and is given out when the one before it is confirmed. Messages without a key have no lane and no cost.

A lane exists while its key has a message on its way. When that message fails, the lane is gone, with everything that
waited in it: whether and when those messages are sent is the caller's to decide. Answers for messages without a lane
(it failed, or was drained) are ignored.
"""

from __future__ import annotations

from collections import deque

from outrider.storage.message import Message


class KeyQueues:
    def __init__(self) -> None:
        # None: the key has a message on its way and nothing behind it, as nearly always.
        self._lanes: dict[str, deque[Message] | None] = {}
        self._waiting = 0

    @property
    def waiting(self) -> int:
        """How many messages wait behind another one of their key."""
        return self._waiting

    def admit(self, message: Message) -> bool:
        """True: send it now. False: it waits behind its key."""
        key = message.ordering_key
        if key is None:
            return True
        if key not in self._lanes:
            self._lanes[key] = None
            return True
        queue = self._lanes[key]
        if queue is None:
            queue = self._lanes[key] = deque()
        queue.append(message)
        self._waiting += 1
        return False

    def confirmed(self, message: Message) -> Message | None:
        """The message has arrived: the next one of its key, to be sent now."""
        key = message.ordering_key
        if key is None or key not in self._lanes:
            return None
        queue = self._lanes[key]
        if not queue:
            del self._lanes[key]
            return None
        self._waiting -= 1
        return queue.popleft()

    def failed(self, message: Message) -> list[Message]:
        """The message did not arrive: what waited behind it, in order, and must not be sent. The lane is gone."""
        key = message.ordering_key
        queue = self._lanes.pop(key, None) if key is not None else None
        left = list(queue or ())
        self._waiting -= len(left)
        return left

    def drain(self) -> list[Message]:
        """Everything that waits, key by key in order. All lanes are gone."""
        left = [message for queue in self._lanes.values() for message in queue or ()]
        self._lanes.clear()
        self._waiting = 0
        return left
