"""
The courier: takes messages to the broker, and brings back what became of them. Nobody ever waits for it.

As long as all is well, everything happens on the caller's thread, by calls that do not wait: `submit` sends, `collect`
brings outcomes, and `fileno` and `wants_write` tell a select() when to collect again. That spares every message two
changes of threads.

What can take time is the business of another thread (`BrokerRecovery`), which is handed the publisher with all that waits, and
hands it back through `post`, an event on the caller's thread, when there is no trouble left. Messages that are
submitted meanwhile go to its mailbox. So only one thread at a time knows the publisher, and there is no lock.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

from outrider.cdc_relay.broker_recovery import BATCH, TICK_SECONDS, BrokerRecovery
from outrider.delivery.outcome import Outcome
from outrider.delivery.publisher import Publisher
from outrider.errors import BrokerOutage
from outrider.failures import Failure
from outrider.runtime.crash_points import crash_point
from outrider.storage.message import Message


class NonBlockingPublisher:
    """Start it once, close it once. All methods are for one thread, the caller's."""

    def __init__(
        self,
        publisher: Publisher,
        *,
        hold_seconds: float,
        server_clock: Callable[[], int],
        post: Callable[[Callable[[], None]], None],
        on_outcomes: Callable[[list[Outcome]], None],
        on_shed: Callable[[], None],
    ) -> None:
        """`post` has a function called on the caller's thread, in order; so are `on_outcomes` and `on_shed`."""
        self._publisher = publisher
        self._now = server_clock
        self._on_outcomes = on_outcomes
        self._queue: list[Message] = []
        self._heartbeat_due = 0.0
        self._after_publish = crash_point("relay.after_publish")
        self._trouble = BrokerRecovery(
            publisher,
            hold_seconds=hold_seconds,
            server_clock=server_clock,
            on_outcomes=lambda outcomes: post(partial(on_outcomes, outcomes)),
            on_shed=lambda: post(on_shed),
            on_end=lambda: post(self._take_back),
            on_crash=lambda error: post(partial(_raise, error)),
            after_publish=self._after_publish,
        )
        self._in_trouble = True  # there is no connection yet

    @property
    def ever_connected(self) -> bool:
        return self._trouble.ever_connected

    @property
    def shedding(self) -> Failure | None:
        """Why messages are not sent but answered with an outage; None while they are sent or held."""
        return self._trouble.shedding

    def start(self) -> None:
        self._trouble.start()

    def submit(self, messages: Sequence[Message]) -> None:
        """Send, now or as soon as possible; each message comes back once, through on_outcomes or on_shed."""
        if self._in_trouble:
            self._trouble.inbox.put(messages)
        else:
            self._queue += messages
            outage: BrokerOutage | None = None
            try:
                self._send()
                if self._publisher.ready:
                    self._on_outcomes(self._publisher.arrived())
            except BrokerOutage as error:
                outage = error
            self._hand_over_trouble(outage)

    def collect(self, *, ready: bool) -> None:
        """Report what became of messages, and send what waits: if select() says that it is `ready`, or now and then."""
        now = time.monotonic()
        if self._in_trouble or not (ready or now >= self._heartbeat_due):
            return
        outage: BrokerOutage | None = None
        try:
            if now >= self._heartbeat_due:
                self._heartbeat_due = now + TICK_SECONDS
                self._publisher.heartbeat()
            if outcomes := self._publisher.arrived():
                self._on_outcomes(outcomes)
            self._send()
        except BrokerOutage as error:
            outage = error
        self._hand_over_trouble(outage)

    def fileno(self) -> int | None:
        """For select(); None while there is nothing to wait for."""
        return None if self._in_trouble else self._publisher.fileno()

    @property
    def wants_write(self) -> bool:
        return not self._in_trouble and self._publisher.wants_write

    def close(self, timeout_seconds: float = 5.0) -> None:
        """Stop at once: what has no outcome yet gets none."""
        self._trouble.close(timeout_seconds)

    def _send(self) -> None:
        while self._queue and not self._publisher.wants_write:
            batch = self._queue[:BATCH]
            if not self._publisher.takes_at_once(batch):
                break
            del self._queue[: len(batch)]
            self._publisher.publish(batch, self._now())
            self._after_publish()

    def _hand_over_trouble(self, outage: BrokerOutage | None) -> None:
        """If there is any: an outage, or whatever else can take time."""
        publisher = self._publisher
        unsendable = bool(self._queue) and not publisher.wants_write
        if outage is not None or unsendable or publisher.troubled or publisher.blocked is not None:
            self._in_trouble = True
            self._trouble.begin(self._queue, outage)
            self._queue = []

    def _take_back(self) -> None:
        """The thread has nothing left to do, unless something was submitted since it said so."""
        if self._trouble.inbox:
            self._trouble.begin([], None)
        else:
            self._in_trouble = False
            self.collect(ready=True)


def _raise(error: BaseException) -> None:
    raise error
