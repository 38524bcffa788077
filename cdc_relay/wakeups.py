"""
Wakeups: the wait of the relay's thread, in one select().

Four things end a wait: the stream, the broker's confirms, settled rows and other events from threads, and a request to
stop. A confirm need not end it: while no message waits for one, confirms are collected together, at an interval, or
when the thread is awake for another reason. For messages that come one by one this halves the number of turns, leaves
the processor to the application, and makes it less likely that a new row finds the relay busy with older confirms.
"""

from __future__ import annotations

import select
import time
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from outrider.cdc_relay.nonblocking_publisher import NonBlockingPublisher
from outrider.cdc_relay.stream import ReplicationStream

LONGEST_WAIT_SECONDS = 0.5
"""The broker needs a heartbeat every few seconds, and send timeouts must be noticed."""

CONFIRM_INTERVAL_SECONDS = 0.005
"""How long confirms may stay unread while no message waits for them. Metrics see a confirm this much later at most."""
CONFIRM_INTERVAL_WHEN_AWAKE_SECONDS = 0.002
"""The same if the thread is awake for another reason."""


class Selectable(Protocol):
    def fileno(self) -> int: ...


class Ready(NamedTuple):
    stream: bool
    broker: bool


class Wakeups:
    def __init__(
        self, stream: ReplicationStream, publisher: NonBlockingPublisher, events: Sequence[Selectable]
    ) -> None:
        """`events`: whatever else ends a wait when it is readable."""
        self._stream = stream
        self._publisher = publisher
        self._events = [event.fileno() for event in events]
        self._confirms_collected_at = 0.0

    def wait(self, deadline: float, *, reading: bool, confirms_can_wait: bool = False) -> Ready:
        """
        Wait until there is work, or until the deadline.

        reading            the stream ends the wait: the window has room
        confirms_can_wait  messages are in flight, and no message waits for their confirms
        """
        stream, broker = self._stream.fileno(), self._publisher.fileno()
        has_more = reading and self._stream.has_more
        readable = [*self._events, stream] if reading else self._events.copy()
        writable = [stream] if self._stream.wants_write else []
        now = time.monotonic()
        until = min(deadline, now + LONGEST_WAIT_SECONDS)
        confirms_due = self._confirms_collected_at + CONFIRM_INTERVAL_SECONDS
        confirms_wait = confirms_can_wait and now < confirms_due
        if confirms_wait:
            until = min(until, confirms_due)
        elif broker is not None:
            readable.append(broker)
        if broker is not None and self._publisher.wants_write:
            writable.append(broker)
        to_read, to_write, _ = select.select(readable, writable, [], 0.0 if has_more else max(0.0, until - now))
        broker_ready = broker in to_read or broker in to_write
        if confirms_wait and not broker_ready:
            awake_anyway = has_more or bool(to_read)
            interval = CONFIRM_INTERVAL_WHEN_AWAKE_SECONDS if awake_anyway else CONFIRM_INTERVAL_SECONDS
            broker_ready = time.monotonic() - self._confirms_collected_at >= interval
        return Ready(stream=has_more or stream in to_read, broker=broker_ready)

    def confirms_collected(self) -> None:
        """Start the interval. Without a recent confirm, the next one ends the wait at once."""
        self._confirms_collected_at = time.monotonic()
