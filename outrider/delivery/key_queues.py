"""
KeyQueues: at most one unconfirmed message per ordering key.

Pure: no I/O, no clock. `admit` says whether a message may be sent now. If its key has a message in flight, it waits in
the key's queue, in order, and `confirmed` returns it when the message before it is confirmed. Messages without a key
are always admitted and cost nothing.

A key has a queue while it has a message in flight. When that message fails, the queue is removed, and its messages are
returned to the caller. Outcomes of messages whose queue was removed (after a failure or `drain`) are ignored.
"""

from __future__ import annotations

from collections import deque

from outrider.storage.message import Message


class KeyQueues:
    def __init__(self) -> None:
        # None instead of an empty queue: nearly always nothing waits behind the message in flight.
        self._queues: dict[str, deque[Message] | None] = {}
        self._waiting = 0

    @property
    def waiting(self) -> int:
        """How many messages wait for another one of their key."""
        return self._waiting

    def admit(self, message: Message) -> bool:
        """True: send it now. False: it waits for an earlier message of its key."""
        key = message.ordering_key
        if key is None:
            return True
        if key not in self._queues:
            self._queues[key] = None
            return True
        queue = self._queues[key]
        if queue is None:
            queue = self._queues[key] = deque()
        queue.append(message)
        self._waiting += 1
        return False

    def confirmed(self, message: Message) -> Message | None:
        """Returns the next message of the key, to be sent now."""
        key = message.ordering_key
        if key is None or key not in self._queues:
            return None
        queue = self._queues[key]
        if not queue:
            del self._queues[key]
            return None
        self._waiting -= 1
        return queue.popleft()

    def failed(self, message: Message) -> list[Message]:
        """Remove the key's queue; returns its messages in order. They must not be sent before this one."""
        key = message.ordering_key
        queue = self._queues.pop(key, None) if key is not None else None
        left = list(queue or ())
        self._waiting -= len(left)
        return left

    def drain(self) -> list[Message]:
        """Remove all queues; returns their messages, in order for each key."""
        left = [message for queue in self._queues.values() for message in queue or ()]
        self._queues.clear()
        self._waiting = 0
        return left
