"""
Deliver claimed batches: publish them, one message per ordering key at a time, and put every message into the settlement
of its batch exactly once:

    confirmed  the broker has it
    failed     the broker refused it, or it has expired: retried after a backoff, or buried
    deferred   the broker is away, or its answer did not come: no attempt is spent
    released   not sent: an earlier message of its key failed, its lease is too short, or the scheduler stops

A message is not sent unless its lease outlasts the send timeout. What is still on its way shortly before its lease ends
(over a slow line, say) is dropped with the connection: see `drop_overdue`. So no row falls due while it is on its way,
and this scheduler does not claim it again. After a message that is buried as expired or undecodable, its key goes on.
After one that used up its attempts, the rest of its key is released: until the burial is written, another scheduler
might still deliver it.

A connection that is lost is opened again at once, up to RESUMES times in a row without an outcome, and what was on its
way is sent again: a message that ends its connection is found by the publisher then, and the others need not wait for
the cooldown. If that fails, it is an outage.

Nothing here uses the database, and nothing raises BrokerOutage: see `take_broker_report`. Several batches can be in
flight at once. A key is in one of them only: its rows are claimed together or not at all.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

from outrider.delivery.key_queues import KeyQueues
from outrider.delivery.publisher import Outcome, Publisher
from outrider.delivery.retry_policy import RetryPolicy
from outrider.errors import BrokerOutage
from outrider.failures import Failure, FailureKind, classify, failure
from outrider.retry_scheduler.claim import Batch
from outrider.retry_scheduler.settlement import BatchSettlement, FailedMessage
from outrider.runtime.crash_points import crash_point
from outrider.runtime.reconnect_delay import reconnect_delay
from outrider.storage.decision import Burial, Decision
from outrider.storage.message import Message
from outrider.telemetry.logs import get_logger

log = get_logger(__name__)

DROP_SECONDS = 1.0
"""How long before the end of a lease its messages are dropped, at most a tenth of it: this must be written in time."""
SETTLE_SECONDS = 1.0
"""How long outcomes are kept to settle a batch at once. A long key must not delay the settlement of the others."""


RESUMES = 4
"""Enough for the publisher to find a message that ends its connection (see connection_suspects.py)."""
RESUMABLE = ("ConnectionLost", "ConnectionClosed")
"""Not a broker that is silent, blocked, or shut down by an operator."""


class BrokerReport(NamedTuple):
    """What the deliveries observed of the broker. An answer came before the outage."""

    answered: bool
    """The broker confirmed or refused a message."""
    outage: Failure | None


class _OpenBatch:
    """A batch with messages that are not settled yet."""

    def __init__(self, batch: Batch, now: float, send_timeout_seconds: float) -> None:
        self.batch = batch
        self.send_by = batch.lease_ends_at - send_timeout_seconds
        self.drop_at = batch.lease_ends_at - min(DROP_SECONDS, (batch.lease_ends_at - now) / 10)
        self.byte_count = batch.byte_count
        self.unresolved = len(batch.messages)
        self.settle_at = now + SETTLE_SECONDS
        self.settlement = BatchSettlement(batch.claim)


class Deliveries:
    def __init__(
        self,
        publisher: Publisher,
        policy: RetryPolicy,
        *,
        send_timeout_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._publisher = publisher
        self._policy = policy
        self._send_timeout_seconds = send_timeout_seconds
        self._clock = clock
        self._key_queues = KeyQueues()
        self._open_batches: dict[str, _OpenBatch] = {}
        self._batch_of: dict[int, _OpenBatch] = {}
        self._sent: dict[int, tuple[Message, float]] = {}
        self._answered = False
        self._outage: Failure | None = None
        self._resumes = 0
        self._resume_at: float | None = None
        self._after_publish = crash_point("scheduler.after_publish")
        self._after_confirm = crash_point("scheduler.after_confirm")

    @property
    def unresolved(self) -> int:
        """Messages that are in no settlement yet."""
        return len(self._batch_of)

    @property
    def held_bytes(self) -> int:
        """The size of the batches that are not settled: they keep their messages until then."""
        return sum(opened.byte_count for opened in self._open_batches.values())

    @property
    def unsettled(self) -> bool:
        """There are batches of which `take_settlements` has not returned everything."""
        return bool(self._open_batches)

    def start(self, batch: Batch) -> None:
        """Start sending a batch."""
        opened = self._open(batch)
        for message in batch.messages:
            self._batch_of[message.id] = opened
        self._send([message for message in batch.messages if self._key_queues.admit(message)])

    def release(self, batch: Batch) -> None:
        """Release a whole batch unsent."""
        opened = self._open(batch)
        opened.unresolved = 0
        opened.settlement.released.extend(batch.messages)

    def drop_overdue(self, claimed: Batch | None = None) -> bool:
        """
        Close the connection and defer what is on its way, if a lease is about to end before the broker has answered.
        Also if `claimed` has a row that is on its way: its lease has ended by the database's clock, which may have been
        set. Returns whether anything was dropped.
        """
        now = self._clock()
        overdue = any(opened.unresolved and now >= opened.drop_at for opened in self._open_batches.values())
        if not overdue and (claimed is None or not any(each.id in self._batch_of for each in claimed.messages)):
            return False
        self._handle_outage(failure("Timeout", "the lease ends, and the broker has not confirmed all messages"))
        return True

    def receive(self, wait_seconds: float) -> bool:
        """Collect outcomes, waiting for the first, and send the next messages of their keys. Whether any arrived."""
        if self._resume_at is not None and not self._publisher.has_outcomes:
            self._resume(self._resume_at, wait_seconds)
            if not self._publisher.connected:
                return False
        if not self._sent and not self._publisher.connected:
            return False
        try:
            if self._publisher.has_blocking_work:
                self._publisher.do_blocking_work()
            outcomes = self._publisher.collect(wait_seconds if self._sent else 0)
        except BrokerOutage as error:
            if self._sent:
                self._handle_outage(classify(error))
            return False
        if outcomes:
            self._after_confirm()
            self._resumes = 0
        self._send([following for outcome in outcomes for following in self._resolve(outcome)])
        if self._publisher.blocked is not None:
            self._limit_blocking(self._publisher.blocked)
        return bool(outcomes) or self._publisher.has_blocking_work

    def take_settlements(self, *, incomplete: bool = False) -> list[tuple[Batch, BatchSettlement]]:
        """The settlements of batches that are complete, or that have been kept for SETTLE_SECONDS, or of all."""
        now = self._clock()
        settlements = []
        for claim, opened in list(self._open_batches.items()):
            if opened.unresolved == 0:
                del self._open_batches[claim]
            elif now < opened.settle_at and not incomplete:
                continue
            if opened.settlement:
                settlements.append((opened.batch, opened.settlement))
            opened.settlement = BatchSettlement(claim)
            opened.settle_at = now + SETTLE_SECONDS
        return settlements

    def take_broker_report(self) -> BrokerReport:
        """What was observed of the broker since the last call."""
        report = BrokerReport(self._answered, self._outage)
        self._answered, self._outage = False, None
        return report

    def release_unsent(self) -> None:
        """Release the messages that wait for an earlier one of their key."""
        for message in self._key_queues.drain():
            self._release(message)

    def disconnect(self) -> None:
        """Close the publisher's connection, and defer the messages without an outcome."""
        self._resume_at = None
        self._publisher.close()
        try:
            while outcomes := self._publisher.collect(0):
                for outcome in outcomes:
                    for following in self._resolve(outcome):
                        self._defer(following)
        except BrokerOutage:
            pass  # there are no more outcomes
        self._publisher.take_unconfirmed()
        for message, _ in list(self._sent.values()):
            self._defer(message)
        for message in self._key_queues.drain():
            self._defer(message)

    def _open(self, batch: Batch) -> _OpenBatch:
        opened = self._open_batches[batch.claim] = _OpenBatch(batch, self._clock(), self._send_timeout_seconds)
        return opened

    # -- sending ------------------------------------------------------------------------------------------------------

    def _send(self, messages: Iterable[Message]) -> None:
        now = self._clock()
        server_time = 0
        ready: list[Message] = []
        queue = deque(messages)
        while queue:
            message = queue.popleft()
            opened = self._batch_of[message.id]
            server_time = opened.batch.server_time(now)
            if now > opened.send_by:
                self._release(message)
            elif message.expires_at is not None and message.expires_at <= server_time:
                self._fail(message, None, Burial(message.id, "expired", "expired before it was sent", 0))
                queue.extend(self._next_of_key(message))
            else:
                ready.append(message)
                self._sent[message.id] = (message, now)
        if ready:
            try:
                self._publisher.publish(ready, server_time)
                self._after_publish()
            except BrokerOutage as error:
                self._handle_outage(classify(error))

    def _handle_outage(self, outage: Failure) -> None:
        if outage.error in RESUMABLE and self._resumes < RESUMES and not self._publisher.connected:
            self._resume_at = self._clock() + reconnect_delay(self._resumes)
            self._resumes += 1
            log.info("broker_connection_lost", error=outage.error, reason=outage.text)
        else:
            self.disconnect()
            self._outage = outage

    def _resume(self, resume_at: float, wait_seconds: float) -> None:
        """Connect again, and send again what was on its way."""
        if (wait := resume_at - self._clock()) > 0:
            time.sleep(min(wait, wait_seconds))
            return
        self._resume_at = None
        try:
            self._publisher.connect()
        except BrokerOutage as error:
            self.disconnect()
            self._outage = classify(error)
            return
        unconfirmed = self._publisher.take_unconfirmed()
        for message in unconfirmed:
            del self._sent[message.id]
        self._send(unconfirmed)

    def _limit_blocking(self, reason: str) -> None:
        """The publisher waits for a blocked broker without a limit, but the leases end."""
        oldest = next((sent_at for _, sent_at in self._sent.values()), None)
        if oldest is not None and self._clock() - oldest > self._send_timeout_seconds:
            self._handle_outage(failure("Blocked", f"the broker takes no messages: {reason}"))

    # -- outcomes -----------------------------------------------------------------------------------------------------

    def _resolve(self, outcome: Outcome) -> list[Message]:
        """Put a message into its settlement; returns the message of its key that can be sent now, if any."""
        message, sent_at = self._sent.pop(outcome.message.id)
        why = outcome.failure
        if why is None:
            self._answered = True
            settlement = self._settlement_for(message)
            settlement.confirmed.append(message)
            settlement.publish_seconds.append(self._clock() - sent_at)
            return self._next_of_key(message)
        if why.kind is FailureKind.OUTAGE:
            self._outage = why
            self._defer(message)
            return []
        self._fail(message, why, self._policy.decide(message, why))
        if why.kind is FailureKind.PERMANENT:
            return self._next_of_key(message)
        self._answered = self._answered or why.error != "BrokerCrashed"
        for behind in self._key_queues.failed(message):
            self._release(behind)
        return []

    def _next_of_key(self, message: Message) -> list[Message]:
        following = self._key_queues.confirmed(message)
        return [] if following is None else [following]

    def _fail(self, message: Message, why: Failure | None, decision: Decision) -> None:
        self._settlement_for(message).failed.append(FailedMessage(message, why, decision))

    def _release(self, message: Message) -> None:
        for each in (message, *self._key_queues.failed(message)):
            self._settlement_for(each).released.append(each)

    def _defer(self, message: Message) -> None:
        self._sent.pop(message.id, None)
        for each in (message, *self._key_queues.failed(message)):
            self._settlement_for(each).deferred.append(each)

    def _settlement_for(self, message: Message) -> BatchSettlement:
        """The settlement of the message's batch; from now on the message counts as resolved."""
        opened = self._batch_of.pop(message.id)
        opened.unresolved -= 1
        return opened.settlement
