"""
The courier: the thread that owns the broker connection.

Messages come in by `submit`, outcomes go out by the callback. Nobody waits for the courier: a slow broker slows nothing
but itself.

In a broker outage it first *holds* what it has, for `hold_seconds`, while it reconnects; then it *sheds*: `on_shed`
says that nothing submitted so far is waited for, and every message that comes while the broker is away is answered with
an outage at once. So the relay can leave the rows to the scheduler, and the WAL moves on. When the broker is back, the
next message goes out at once. A broker that blocks its publishers (a memory or disk alarm) is an outage like any other,
except that the connection is kept, to learn when it ends.
"""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Callable, Sequence

from cdc_relay.mailbox import Mailbox
from outbox.backoff import reconnect_delay
from outbox.delivery.outcome import Outcome
from outbox.delivery.publisher import Publisher
from outbox.errors import BrokerOutage
from outbox.failures import Failure, classify
from outbox.message import Message
from outbox.telemetry.logs import get_logger

log = get_logger(__name__)

BATCH = 256
"""Messages in one write: large enough to spare system calls, small enough that confirms are read in between."""

TICK_SECONDS = 1.0
LONGEST_RETRY_SECONDS = 2.0


class Courier:
    """Publishes on a thread of its own. Start it once, close it once."""

    def __init__(
        self,
        publisher: Publisher,
        *,
        hold_seconds: float,
        server_clock: Callable[[], int],
        on_outcomes: Callable[[list[Outcome]], None],
        on_shed: Callable[[], None],
        on_crash: Callable[[BaseException], None],
    ) -> None:
        self._publisher = publisher
        self._hold_seconds = hold_seconds
        self._now = server_clock
        self._on_outcomes = on_outcomes
        self._on_shed = on_shed
        self._on_crash = on_crash
        self._inbox: Mailbox[Message] = Mailbox()
        self._held: list[Message] = []
        self._outage: Failure | None = None
        self._outage_since = 0.0
        self._retry_at = 0.0
        self._retries = 0
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="courier", daemon=True)
        self.ever_connected = False
        self.shedding: Failure | None = None
        """Why messages are not sent but answered with an outage; None while they are sent or held."""

    def start(self) -> None:
        self._thread.start()

    def submit(self, messages: Sequence[Message]) -> None:
        self._inbox.put(messages)

    def close(self, timeout_seconds: float = 5.0) -> None:
        """Stop at once: what has no outcome yet gets none."""
        self._closing.set()
        self._inbox.put(())
        if self._thread.is_alive():
            self._thread.join(timeout_seconds)

    # -- the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._closing.is_set():
                self._turn()
        except Exception as error:
            self._on_crash(error)
        finally:
            self._publisher.close()
            self._inbox.close()

    def _turn(self) -> None:
        try:
            if self._publisher.connected or self._reconnect():
                if self._closing.is_set():  # connecting takes its time: what is held is not ours to send any more
                    return
                if self._publisher.blocked is None:
                    self._recover()
                    self._send()
                else:
                    self._suffer(BrokerOutage(f"the broker blocks its publishers: {self._publisher.blocked}"))
                self._receive()
        except BrokerOutage as error:
            self._held = self._publisher.take_unconfirmed() + self._held
            self._suffer(error)
        if self._outage is not None:
            self._hold_or_shed(self._outage)
            if not self._publisher.connected:
                self._wait(None)

    def _send(self) -> None:
        """Hand over one batch, the oldest first."""
        batch, self._held = self._held[:BATCH], self._held[BATCH:]
        batch += self._inbox.take(BATCH - len(batch))
        if batch:
            self._publisher.publish(batch, self._now())

    def _receive(self) -> None:
        """Report what became of messages; wait for something to do, but never while there is."""
        if self._report_outcomes():  # some are known as soon as they are sent, and no socket tells of them
            return
        socket = self._publisher.fileno()
        if self._outage is not None or not (self._held or self._inbox):
            self._wait(socket)
        self._publisher.heartbeat()
        self._report_outcomes()

    def _report_outcomes(self) -> bool:
        outcomes = self._publisher.collect(0)
        if outcomes:
            self._on_outcomes(outcomes)
        return bool(outcomes)

    # -- outages ------------------------------------------------------------------------------------------------------

    def _reconnect(self) -> bool:
        if time.monotonic() < self._retry_at:
            return False
        self._publisher.connect()
        if not self.ever_connected:
            log.info("broker_connected")
        self.ever_connected = True
        return True

    def _recover(self) -> None:
        if self._outage is not None:
            log.info("broker_available", after_seconds=round(time.monotonic() - self._outage_since, 1))
        self.shedding = self._outage = None
        self._retries = 0

    def _suffer(self, error: BrokerOutage) -> None:
        failure = classify(error)
        if self._outage is None:
            self._outage_since = time.monotonic()
            log.warning("broker_outage", error=failure.error, reason=failure.text, hint=failure.hint)
        self._outage = failure
        self._retry_at = time.monotonic() + reconnect_delay(self._retries, longest_seconds=LONGEST_RETRY_SECONDS)
        self._retries += 1

    def _hold_or_shed(self, outage: Failure) -> None:
        if self.shedding is None:
            if self.ever_connected and time.monotonic() < self._outage_since + self._hold_seconds:
                return
            log.warning("shedding", reason=outage.text, held=len(self._held))
            self._on_shed()
            self._held = []
        self.shedding = outage
        shed = self._inbox.take()
        if shed:
            self._on_outcomes([Outcome(message, outage) for message in shed])

    def _wait(self, socket: int | None) -> None:
        """For the broker's word, new messages, the next attempt to connect, or the end of holding."""
        sources: list[int | Mailbox[Message]] = [] if socket is None else [socket]
        until = time.monotonic() + TICK_SECONDS
        if self._outage is None or self.shedding is not None:
            sources.append(self._inbox)  # not while holding: what has come stays there, and would end every wait
        else:
            until = min(until, self._outage_since + self._hold_seconds)
        if self._outage is not None and socket is None:
            until = min(until, self._retry_at)
        select.select(sources, [], [], max(0.0, until - time.monotonic()))
