"""
ConnectionSuspects: finds the message because of which connections are lost.

Pure: told of losses and answers, it says which message is to blame. Most losses have nothing to do with a message, so:

    first loss of a connection   the messages in flight are remembered
    second one in a row          those that were in flight both times are suspects: from now on the publisher isolates,
                                 which means one message in flight on the whole connection
    a suspect was alone          it is the cause: it fails, and the others go on

A protocol error (AMQP's connection.close) says that a message is the cause, so it makes suspects at once. An answer
clears a message. A timeout, or a close by an operator, is not reported here.

A broker that crashes with every message must not spend the attempts of all of them: without a confirmed message in
between, at most MAX_BLAMED are blamed within REMEMBER_SECONDS. After that, a loss is an outage.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic

REMEMBER_SECONDS = 60.0
LOSSES_OF_A_SUSPECT = 2
MAX_BLAMED = 10


class ConnectionSuspects:
    """Messages are known by their ids."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._losses: dict[int, int] = {}
        self._suspects: set[int] = set()
        self._forget_at = 0.0
        self._blamed: list[float] = []

    def __bool__(self) -> bool:
        """There are suspects: isolate."""
        if self._suspects and self._clock() > self._forget_at:
            self._forget()  # other processes deliver them meanwhile
        return bool(self._suspects)

    def connection_lost(self, in_flight: Sequence[int], *, protocol_error: bool) -> int | None:
        """Returns the message that is to blame, if there is one."""
        now = self._clock()
        if now > self._forget_at:
            self._forget()
        self._forget_at = now + REMEMBER_SECONDS
        if len(in_flight) == 1 and in_flight[0] in self._suspects and self._may_blame(now):
            self._blamed.append(now)
            self._clear(in_flight[0])
            return in_flight[0]
        for each in in_flight:
            self._losses[each] = self._losses.get(each, 0) + (LOSSES_OF_A_SUSPECT if protocol_error else 1)
            if self._losses[each] >= LOSSES_OF_A_SUSPECT:
                self._suspects.add(each)
        return None

    def answered(self, message_id: int, *, confirmed: bool) -> None:
        if confirmed and self._blamed:
            self._blamed.clear()
        if self._losses:
            self._clear(message_id)

    def _may_blame(self, now: float) -> bool:
        self._blamed = [each for each in self._blamed if now - each < REMEMBER_SECONDS]
        return len(self._blamed) < MAX_BLAMED

    def _clear(self, message_id: int) -> None:
        self._losses.pop(message_id, None)
        self._suspects.discard(message_id)

    def _forget(self) -> None:
        self._losses.clear()
        self._suspects.clear()
