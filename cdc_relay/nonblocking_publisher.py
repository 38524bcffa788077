"""
NonBlockingPublisher: publishes without blocking the relay's thread and reports an outcome for every message.

Normally everything happens on the caller's thread: `submit` publishes, `collect` reports outcomes, and `fileno` and
`wants_write` tell a select() when to call `collect`. So a message to RabbitMQ needs no change of threads. While
something could block, the publisher is with the background thread (see background_publisher.py, which has a table of
the hand-over), and messages go to the background thread's inbox.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from outrider.cdc_relay.background_publisher import (
    BATCH,
    TICK_SECONDS,
    BackgroundPublisher,
    Crashed,
    HandedBack,
    Published,
    Report,
    Shed,
)
from outrider.delivery.publisher import Outcome, Publisher
from outrider.errors import BrokerOutage
from outrider.failures import Failure
from outrider.runtime.wakeable_queue import WakeableQueue
from outrider.storage.message import Message


class OutcomeHandler(Protocol):
    """Receives what NonBlockingPublisher reports, on the caller's thread, inside `submit` and `collect`."""

    def apply_outcomes(self, outcomes: Sequence[Outcome]) -> None:
        """The outcomes of these messages are known."""

    def apply_shed(self) -> None:
        """No message submitted so far gets an outcome any more, except those that arrive from the broker late."""


class NonBlockingPublisher:
    """Start it once, close it once. All methods are for one thread, the caller's."""

    def __init__(
        self,
        publisher: Publisher,
        handler: OutcomeHandler,
        *,
        hold_seconds: float,
        server_clock: Callable[[], int],
    ) -> None:
        self._publisher = publisher
        self._handler = handler
        self._now = server_clock
        self._queue: list[Message] = []
        self._heartbeat_due = 0.0
        self._background = BackgroundPublisher(publisher, hold_seconds=hold_seconds, server_clock=server_clock)
        self._in_background = True  # there is no connection yet

    @property
    def ever_connected(self) -> bool:
        return self._background.ever_connected

    @property
    def shedding(self) -> Failure | None:
        """The outage because of which messages fail at once; None while they are published or held."""
        return self._background.shedding

    def start(self) -> None:
        self._background.start()

    def submit(self, messages: Sequence[Message]) -> None:
        """Publish as soon as possible. Each message gets one outcome, unless `apply_shed` comes first."""
        if self._in_background:
            self._background.inbox.put(messages)
            return
        self._queue += messages
        outage: BrokerOutage | None = None
        try:
            self._publish_queue()
        except BrokerOutage as error:
            outage = error
        self._hand_over_if_needed(outage)

    def collect(self, *, ready: bool) -> None:
        """
        Report outcomes and publish what waits. Never blocks.

        Call it when `reports` is readable, when `fileno` is readable or writable (`ready`), and about once a second.
        """
        self._read_reports()
        now = time.monotonic()
        if self._in_background or not (ready or now >= self._heartbeat_due):
            return
        outage: BrokerOutage | None = None
        try:
            if now >= self._heartbeat_due:
                self._heartbeat_due = now + TICK_SECONDS
                self._publisher.heartbeat()
            if outcomes := self._publisher.collect(0):
                self._handler.apply_outcomes(outcomes)
            if not self._publisher.connected:
                self._publisher.collect(0)  # raises the outage, now that the outcomes before it are applied
            self._publish_queue()
        except BrokerOutage as error:
            outage = error
        self._hand_over_if_needed(outage)

    def fileno(self) -> int | None:
        """The broker's socket, for select(); None while the background thread has the publisher."""
        return None if self._in_background else self._publisher.fileno()

    @property
    def wants_write(self) -> bool:
        return not self._in_background and self._publisher.wants_write

    @property
    def reports(self) -> WakeableQueue[Report]:
        """For select(): readable when the background thread has something to report. Then call `collect`."""
        return self._background.reports

    def close(self, timeout_seconds: float = 5.0) -> None:
        """Stop at once. Messages without an outcome get none."""
        self._background.close(timeout_seconds)

    def _publish_queue(self) -> None:
        while self._queue and not self._publisher.wants_write:
            batch, self._queue = self._queue[:BATCH], self._queue[BATCH:]
            self._publisher.publish(batch, self._now())
            if not self._publisher.has_blocking_work:
                self._background.after_publish()

    def _hand_over_if_needed(self, outage: BrokerOutage | None) -> None:
        """Report what is known already, and leave what could block to the background thread."""
        publisher = self._publisher
        if publisher.has_outcomes:
            self._handler.apply_outcomes(publisher.collect(0))
        if outage is not None or publisher.has_blocking_work or publisher.isolating or publisher.blocked is not None:
            self._in_background = True
            self._background.take_over(self._queue, outage)
            self._queue = []

    def _read_reports(self) -> None:
        for report in self._background.reports.take():
            match report:
                case Published(outcomes):
                    self._handler.apply_outcomes(outcomes)
                case Shed():
                    self._handler.apply_shed()
                case HandedBack():
                    self._take_back()
                case Crashed(error):
                    raise error

    def _take_back(self) -> None:
        """Use the publisher again, unless messages were submitted after the background thread gave it back."""
        if self._background.inbox:
            self._background.take_over([], None)
        else:
            self._in_background = False
            self._heartbeat_due = 0.0  # collect now: outcomes may have arrived unnoticed
