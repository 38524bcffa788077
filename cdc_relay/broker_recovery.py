"""
BrokerRecovery: the thread that has the publisher while something can take time: connecting, declaring queues, finding out
which message made the broker close a channel, and outages.

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

from outrider.delivery.outcome import Outcome
from outrider.delivery.publisher import Publisher
from outrider.errors import BrokerOutage
from outrider.failures import Failure, classify, outage
from outrider.runtime.crash_points import CrashPoint, crash_point
from outrider.runtime.reconnect_delay import reconnect_delay
from outrider.runtime.wakeable_queue import WakeableQueue
from outrider.storage.message import Message
from outrider.telemetry.logs import get_logger

log = get_logger(__name__)

BATCH = 1000
"""Messages in one write: large enough to spare system calls, small enough that confirms are read in between."""

TICK_SECONDS = 1.0
LONGEST_RETRY_SECONDS = 2.0


class BrokerRecovery:
    """In trouble from the start: there is no connection yet. Start it once, close it once."""

    def __init__(
        self,
        publisher: Publisher,
        *,
        hold_seconds: float,
        server_clock: Callable[[], int],
        on_outcomes: Callable[[list[Outcome]], None],
        on_shed: Callable[[], None],
        on_end: Callable[[], None],
        on_crash: Callable[[BaseException], None],
        after_publish: CrashPoint,
    ) -> None:
        self._publisher = publisher
        self._hold_seconds = hold_seconds
        self._now = server_clock
        self._on_outcomes = on_outcomes
        self._on_shed = on_shed
        self._on_end = on_end
        self._on_crash = on_crash
        self._after_publish = after_publish
        self._shedding = crash_point("relay.shedding")
        self._held: list[Message] = []
        self._outage: Failure | None = None
        self._outage_since = 0.0
        self._retry_at = 0.0
        self._retries = 0
        self._begun = threading.Event()
        self._begun.set()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="courier", daemon=True)
        self.inbox: WakeableQueue[Message] = WakeableQueue()
        self.ever_connected = False
        self.shedding: Failure | None = None

    def start(self) -> None:
        self._thread.start()

    def begin(self, messages: Sequence[Message], outage: BrokerOutage | None) -> None:
        """Here is the publisher, and what is to be sent next. Not while the thread has it."""
        self._held = self._publisher.take_unconfirmed() + self._held + list(messages)
        if outage is not None:
            self._suffer(outage)
        self._begun.set()

    def close(self, timeout_seconds: float) -> None:
        self._closing.set()
        self._begun.set()
        self.inbox.put(())
        if self._thread.is_alive():
            self._thread.join(timeout_seconds)

    # -- the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._closing.is_set():
                self._begun.wait()
                self._begun.clear()
                while not self._closing.is_set() and self._turn():
                    pass
                if not self._closing.is_set():
                    self._on_end()
        except Exception as error:
            self._on_crash(error)
        finally:
            self._publisher.close()
            self.inbox.close()

    def _turn(self) -> bool:
        """Do what can be done, and wait for more; whether trouble is left."""
        try:
            if self._publisher.connected or self._reconnect():
                if self._closing.is_set():  # connecting takes its time: what is held is not ours to send any more
                    return True
                if self._publisher.blocked is None:
                    self._recover()
                    self._send()
                else:
                    self._suffer(outage("Blocked", f"the broker takes no messages: {self._publisher.blocked}"))
                self._publisher.heartbeat()
                if outcomes := self._publisher.collect(0):
                    self._on_outcomes(outcomes)
        except BrokerOutage as error:
            self._held = self._publisher.take_unconfirmed() + self._held
            self._suffer(error)
        if self._outage is not None:
            self._hold_or_shed(self._outage)
            self._wait()
            return True
        if self._held or self.inbox:
            if self._publisher.wants_write:
                self._wait()
            return True
        if self._publisher.troubled:
            self._wait()
            return True
        return False

    def _send(self) -> None:
        """Hand over one batch, the oldest first."""
        if not self._publisher.wants_write:
            batch, self._held = self._held[:BATCH], self._held[BATCH:]
            batch += self.inbox.take(BATCH - len(batch))
            if batch:
                self._publisher.publish(batch, self._now())
                self._after_publish()

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
            self._shedding()
            self._on_shed()
            self._held = []
            self._publisher.withdraw()  # a broker that is blocked would get them too, once it is not any more
        self.shedding = outage
        shed = self.inbox.take()
        if shed:
            self._on_outcomes([Outcome(message, outage) for message in shed])

    def _wait(self) -> None:
        """For the broker's word, new messages, the next attempt to connect, or the end of holding."""
        socket = self._publisher.fileno()
        readable = [] if socket is None else [socket]
        writable = [socket] if socket is not None and self._publisher.wants_write else []
        until = time.monotonic() + TICK_SECONDS
        if self._outage is not None and self.shedding is None:
            # What has come while holding stays where it is, and would end every wait.
            until = min(until, self._outage_since + self._hold_seconds)
        elif not writable:
            readable.append(self.inbox.fileno())
        if self._outage is not None and socket is None:
            until = min(until, self._retry_at)
        select.select(readable, writable, [], max(0.0, until - time.monotonic()))
