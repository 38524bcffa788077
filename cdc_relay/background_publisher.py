"""
BackgroundPublisher: the thread that uses the publisher whenever a call could block the relay's thread.

It connects, does the publisher's blocking work (declaring queues, isolating a refused message, every send to a broker
such as Redis) and waits out broker outages. Only one thread uses the publisher at a time, so it has no lock:

    relay's thread                                      background thread
    --------------------------------------------------  ------------------------------------------------------------
    start()                                   ------->  has the publisher: connects
                                              <-------  HandedBack: nothing is left to do, or to send
    has the publisher: publishes and collects           waits
    take_over(messages, outage)               ------->  has the publisher: does what blocks
    `inbox.put(messages)` for new messages    ------->  publishes them, too
                                              <-------  `reports`: Published, Shed
                                              <-------  HandedBack, or Crashed

When the relay's thread reads HandedBack, `inbox` may have messages again: then it calls `take_over` at once.

In a broker outage the thread first *holds* the messages without an outcome, for `hold_seconds`, while it reconnects.
Then it *sheds*: it reports Shed (no message submitted so far gets an outcome), and every further message fails at once
with the outage. So the relay can leave the rows to the scheduler, and the WAL position moves on. After the reconnect
messages are published again. The outage ends when the new connection has proved itself: by a confirm, because nothing
is left to send, or by lasting PROOF_SECONDS. A connection that comes up and is lost again does not prolong the holding,
and the pauses between connections grow. A broker that blocks its publishers (a memory or disk alarm) is an outage too,
but the connection is kept, because the broker announces there when the alarm ends.
"""

from __future__ import annotations

import math
import select
import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from outrider.delivery.publisher import Outcome, Publisher
from outrider.errors import BrokerOutage
from outrider.failures import Failure, classify, outage
from outrider.runtime.crash_points import crash_point
from outrider.runtime.reconnect_delay import STEADY_SECONDS, reconnect_delay
from outrider.runtime.wakeable_queue import WakeableQueue
from outrider.storage.message import Message
from outrider.telemetry.logs import get_logger

log = get_logger(__name__)

BATCH = 1000
"""Messages in one write: large enough to save system calls, small enough that confirms are read in between."""

TICK_SECONDS = 1.0
LONGEST_RETRY_SECONDS = 2.0
PROOF_SECONDS = 2.0


class Published(NamedTuple):
    """The outcomes of these messages are known."""

    outcomes: list[Outcome]


class Shed(NamedTuple):
    """No message submitted so far gets an outcome any more."""


class HandedBack(NamedTuple):
    """The relay's thread may use the publisher again."""


class Crashed(NamedTuple):
    """The background thread ended with this error."""

    error: Exception


Report = Published | Shed | HandedBack | Crashed


class BackgroundPublisher:
    """Has the publisher from the start, because there is no connection yet. Start it once, close it once."""

    def __init__(self, publisher: Publisher, *, hold_seconds: float, server_clock: Callable[[], int]) -> None:
        self.inbox: WakeableQueue[Message] = WakeableQueue()
        self.reports: WakeableQueue[Report] = WakeableQueue()
        self.ever_connected = False
        self.shedding: Failure | None = None
        self.after_publish = crash_point("relay.after_publish")
        self._publisher = publisher
        self._hold_seconds = hold_seconds
        self._now = server_clock
        self._before_shed = crash_point("relay.shedding")
        self._held: list[Message] = []
        self._outage: Failure | None = None
        self._outage_since = 0.0
        self._connected_at = math.inf
        self._retry_at = 0.0
        self._retries = 0
        self._taken_over = threading.Event()
        self._taken_over.set()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="background-publisher", daemon=True)

    # -- for the relay's thread ---------------------------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    def take_over(self, messages: Sequence[Message], outage: BrokerOutage | None) -> None:
        """Use the publisher from now on, and publish these messages next. Only while the relay's thread has it."""
        self._held = self._publisher.take_unconfirmed() + self._held + list(messages)
        if outage is not None:
            self._note_outage(outage)
        self._taken_over.set()

    def close(self, timeout_seconds: float) -> None:
        """End the thread, which closes the publisher. Messages without an outcome get none."""
        self._closing.set()
        self._taken_over.set()
        self.inbox.put(())
        if self._thread.is_alive():
            self._thread.join(timeout_seconds)
        self.reports.close()

    # -- the background thread ----------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._closing.is_set():
                self._taken_over.wait()
                self._taken_over.clear()
                while not self._closing.is_set() and self._turn():
                    pass
                if not self._closing.is_set():
                    self._report(HandedBack())
        except Exception as error:
            self._report(Crashed(error))
        finally:
            self._publisher.close()
            self.inbox.close()

    def _report(self, report: Report) -> None:
        self.reports.put((report,))

    def _turn(self) -> bool:
        """Do what is possible now, and wait for more. Returns whether something is left to do."""
        publisher = self._publisher
        try:
            if publisher.connected or self._reconnect():
                if self._closing.is_set():  # connecting took some time, and the held messages must not be sent any more
                    return True
                if publisher.blocked is None:
                    self._publish_batch()
                else:
                    self._note_outage(outage("Blocked", f"the broker takes no messages: {publisher.blocked}"))
                publisher.heartbeat()
                if outcomes := publisher.collect(0):
                    self._report(Published(outcomes))
                if any(outcome.failure is None for outcome in outcomes):
                    self._retries = 0
                if self._outage is not None and publisher.blocked is None and self._is_proved(outcomes):
                    self._note_recovery()
        except BrokerOutage as error:
            self._held = publisher.take_unconfirmed() + self._held
            self._note_outage(error)
            if publisher.has_outcomes:
                self._report(Published(publisher.collect(0)))
                self._retries = 0  # the message that ended the connection may be among them
        if self._outage is not None and not self._can_publish():
            self._hold_or_shed(self._outage)
            self._wait()
            return True
        if self._held or self.inbox or publisher.has_blocking_work:
            if publisher.wants_write:
                self._wait()
            return True
        if publisher.isolating or self._outage is not None:
            self._wait()
            return True
        return False

    def _can_publish(self) -> bool:
        return self._publisher.connected and self._publisher.blocked is None

    def _publish_batch(self) -> None:
        """Publish the oldest messages, unless blocking work has to be done first, and do a part of that work."""
        publisher = self._publisher
        batch: list[Message] = []
        if not publisher.wants_write and not publisher.has_blocking_work:
            batch, self._held = self._held[:BATCH], self._held[BATCH:]
            batch += self.inbox.take(BATCH - len(batch))
            if batch:
                publisher.publish(batch, self._now())
        if publisher.has_blocking_work:
            publisher.do_blocking_work()
        if batch:
            self.after_publish()

    def _wait(self) -> None:
        """Wait for the broker, for new messages, for the next attempt to connect, or for the end of holding."""
        socket = self._publisher.fileno()
        readable = [] if socket is None else [socket]
        writable = [socket] if socket is not None and self._publisher.wants_write else []
        until = time.monotonic() + TICK_SECONDS
        if self._outage is not None and self.shedding is None and not self._can_publish():
            # Messages that arrive while holding stay in the inbox: watching it would end every wait at once.
            until = min(until, self._outage_since + self._hold_seconds)
        elif not writable:
            readable.append(self.inbox.fileno())
        if self._outage is not None and socket is None:
            until = min(until, self._retry_at)
        select.select(readable, writable, [], max(0.0, until - time.monotonic()))

    # -- outages ------------------------------------------------------------------------------------------------------

    def _reconnect(self) -> bool:
        if time.monotonic() < self._retry_at:
            return False
        self._publisher.connect()
        self._connected_at = time.monotonic()
        if not self.ever_connected:
            log.info("broker_connected")
        self.ever_connected = True
        return True

    def _is_proved(self, outcomes: Sequence[Outcome]) -> bool:
        publisher = self._publisher
        confirmed = any(outcome.failure is None for outcome in outcomes)
        return (
            confirmed
            or not (publisher.in_flight or publisher.has_outcomes or self._held or self.inbox)
            or time.monotonic() - self._connected_at > PROOF_SECONDS
        )

    def _note_recovery(self) -> None:
        log.info("broker_available", after_seconds=round(time.monotonic() - self._outage_since, 1))
        self.shedding = self._outage = None

    def _note_outage(self, error: BrokerOutage) -> None:
        failure = classify(error)
        if self._outage is None:
            self._outage_since = time.monotonic()
            log.warning("broker_outage", error=failure.error, reason=failure.text, hint=failure.hint)
        self._outage = failure
        if self._publisher_lasted():
            self._retries = 0
        self._retry_at = time.monotonic() + reconnect_delay(self._retries, longest_seconds=LONGEST_RETRY_SECONDS)
        self._retries += 1

    def _publisher_lasted(self) -> bool:
        lost_after, self._connected_at = time.monotonic() - self._connected_at, math.inf
        return lost_after > STEADY_SECONDS

    def _hold_or_shed(self, outage: Failure) -> None:
        if self.shedding is None:
            if self.ever_connected and time.monotonic() < self._outage_since + self._hold_seconds:
                return
            log.warning("shedding", reason=outage.text, held=len(self._held))
            self._before_shed()
            self._report(Shed())
            self._held = []
            self._publisher.withdraw()  # a blocked broker would get them when the alarm ends
        self.shedding = outage
        if shed := self.inbox.take():
            self._report(Published([Outcome(message, outage) for message in shed]))
