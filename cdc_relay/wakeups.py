"""
Wake-ups: what the relay's thread sleeps on, and what it finds when it wakes.

Four things wake it: the stream, the broker's confirms, events from other threads, and a request to stop. Confirms need
not wake it each: where nobody waits for one, they are taken along in a turn that something else has begun, or together
a little later. That halves the turns of a relay that gets its messages one by one, leaves the processor to those that
bring them, and seldom lets a row find the relay busy with the confirms of others.
"""

from __future__ import annotations

import select
import time
from typing import Any, NamedTuple

from outrider.cdc_relay.nonblocking_publisher import NonBlockingPublisher
from outrider.cdc_relay.stream import ReplicationStream
from outrider.runtime.shutdown import Shutdown
from outrider.runtime.wakeable_queue import WakeableQueue

LONGEST_WAIT_SECONDS = 0.5
"""The broker wants a sign of life every few seconds, and a late confirm is to be noticed."""

GATHER_SECONDS = 0.005
"""How long confirms may lie that nobody waits for. Metrics see a confirm this much later at most."""
ALONG_SECONDS = 0.002
"""After so long they are taken along, if the relay is awake for something else."""


class Ready(NamedTuple):
    """What a wait was ended by, beside events."""

    stream: bool
    broker: bool


class Wakeups:
    def __init__(
        self, stream: ReplicationStream, courier: NonBlockingPublisher, events: WakeableQueue[Any], shutdown: Shutdown
    ) -> None:
        self._stream = stream
        self._courier = courier
        self._events = events
        self._always = [events.fileno(), shutdown.fileno()]
        self._confirms_taken = 0.0

    def wait(self, deadline: float, *, reading: bool, patient: bool = False) -> Ready:
        """
        For anything to do, until the deadline at most.

        reading  the stream counts: there is room for what it has
        patient  confirms are expected, and nobody waits for them
        """
        stream, broker = self._stream.fileno(), self._courier.fileno()
        has_more = reading and self._stream.has_more
        readable = [*self._always, stream] if reading else self._always.copy()
        writable = [stream] if self._stream.wants_write else []
        now = time.monotonic()
        until = min(deadline, now + LONGEST_WAIT_SECONDS)
        confirms_due = self._confirms_taken + GATHER_SECONDS
        gathering = patient and now < confirms_due
        if gathering:
            until = min(until, confirms_due)
        elif broker is not None:
            readable.append(broker)
        if broker is not None and self._courier.wants_write:
            writable.append(broker)
        to_read, to_write, _ = select.select(
            readable, writable, [], 0.0 if has_more or self._events else max(0.0, until - now)
        )
        answered = broker in to_read or broker in to_write
        if gathering and not answered:
            awake_anyway = has_more or bool(to_read)
            lain_seconds = time.monotonic() - self._confirms_taken
            answered = lain_seconds >= (ALONG_SECONDS if awake_anyway else GATHER_SECONDS)
        return Ready(stream=has_more or stream in to_read, broker=answered)

    def confirms_taken(self) -> None:
        """More are likely to follow: they are left alone for a while. A broker that is slow is listened to."""
        self._confirms_taken = time.monotonic()
