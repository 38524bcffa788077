"""
Deliver claimed batches: pipelined, one message per ordering key at a time, each message with one verdict.

    confirmed  the broker has it
    refused    the broker said no: backoff, or the dead letters when its attempts are used up, it has expired or can
               never be sent
    deferred   the broker is away (or its answer did not come): no attempt is spent
    released   not sent: an earlier message of its key failed, its lease is too short for an answer, or we shut down

A message is not sent unless its lease outlasts the send timeout. A message that is buried because it has expired or is
undecodable does not hold up its key; one that ran out of attempts ends its key's turn, because until it is buried it
might still be delivered by somebody else.

Nothing here talks to the database, and nothing raises: what happens comes out as verdicts, and as news of the broker.
Several batches may be on their way at once. A key is in one of them only: its rows are claimed together or not at all.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

from outrider.delivery.key_queues import KeyQueues
from outrider.delivery.outcome import Outcome
from outrider.delivery.publisher import Publisher
from outrider.delivery.retry_policy import RetryPolicy
from outrider.errors import BrokerOutage
from outrider.failures import Failure, FailureKind, classify, failure
from outrider.retry_scheduler.claim import Batch
from outrider.retry_scheduler.settlement import Refused, Settlement
from outrider.runtime.crash_points import crash_point
from outrider.storage.message import Message
from outrider.storage.store import Burial, Refusal

REPORT_SECONDS = 1.0
"""How long verdicts are kept back while others of the batch are awaited: a long key must not hold up what is done."""


class News(NamedTuple):
    """What was learnt of the broker, in this order."""

    answered: bool
    """It confirmed or refused a message."""
    outage: Failure | None
    """It went away."""


class _Load:
    """A batch on its way."""

    def __init__(self, batch: Batch, now: float, send_timeout_seconds: float) -> None:
        self.batch = batch
        self.start_by = batch.lease_ends_at - send_timeout_seconds
        self.unresolved = len(batch.messages)
        self.report_at = now + REPORT_SECONDS
        self.verdicts = Settlement(batch.claim)


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
        self._lanes = KeyQueues()
        self._loads: dict[str, _Load] = {}
        self._load_of: dict[int, _Load] = {}
        self._sent: dict[int, tuple[Message, float]] = {}
        self._answered = False
        self._outage: Failure | None = None
        self._after_publish = crash_point("scheduler.after_publish")
        self._after_confirm = crash_point("scheduler.after_confirm")

    @property
    def unresolved(self) -> int:
        """Messages without a verdict."""
        return len(self._load_of)

    @property
    def unreported(self) -> bool:
        """There are batches of which something is still to be reported."""
        return bool(self._loads)

    def accept(self, batch: Batch) -> None:
        """Start sending a batch."""
        load = _Load(batch, self._clock(), self._send_timeout_seconds)
        self._loads[batch.claim] = load
        for message in batch.messages:
            self._load_of[message.id] = load
        self._send([message for message in batch.messages if self._lanes.admit(message)])

    def decline(self, batch: Batch) -> None:
        """Send nothing of a batch: release all of it."""
        load = self._loads[batch.claim] = _Load(batch, self._clock(), self._send_timeout_seconds)
        load.unresolved = 0
        load.verdicts.released.extend(batch.messages)

    def receive(self, wait_seconds: float) -> bool:
        """Take the answers that have come, or wait for some, and send what waited for them. Whether any came."""
        if not self._sent and not self._publisher.connected:
            return False
        try:
            outcomes = self._publisher.collect(wait_seconds if self._sent else 0)
        except BrokerOutage as error:
            if self._sent:
                self._give_up(classify(error))
            return False
        if outcomes:
            self._after_confirm()
        self._send([following for outcome in outcomes for following in self._resolve(outcome)])
        if self._publisher.blocked is not None:
            self._check_blocked(self._publisher.blocked)
        return bool(outcomes)

    def report(self, *, all_known: bool = False) -> list[tuple[Batch, Settlement]]:
        """Settlement of batches that are done, or that others of the batch have held up for long enough."""
        now = self._clock()
        reports = []
        for claim, load in list(self._loads.items()):
            if load.unresolved == 0:
                del self._loads[claim]
            elif now < load.report_at and not all_known:
                continue
            if load.verdicts:
                reports.append((load.batch, load.verdicts))
            load.verdicts = Settlement(claim)
            load.report_at = now + REPORT_SECONDS
        return reports

    def news(self) -> News:
        """What was learnt of the broker since the last call."""
        news = News(self._answered, self._outage)
        self._answered, self._outage = False, None
        return news

    def release_unsent(self) -> None:
        """What waits behind its key is not sent any more."""
        for message in self._lanes.drain():
            self._release(message)

    def abandon(self) -> None:
        """Close the publisher: what has no answer is deferred."""
        self._publisher.close()
        try:
            while outcomes := self._publisher.collect(0):
                for outcome in outcomes:
                    for following in self._resolve(outcome):
                        self._defer(following)
        except BrokerOutage:
            pass  # the connection is gone: that was the last of them
        self._publisher.take_unconfirmed()
        for message, _ in list(self._sent.values()):
            self._defer(message)
        for message in self._lanes.drain():
            self._defer(message)

    # -- sending ------------------------------------------------------------------------------------------------------

    def _send(self, messages: Iterable[Message]) -> None:
        now = self._clock()
        server_time = 0
        ready: list[Message] = []
        queue = deque(messages)
        while queue:
            message = queue.popleft()
            load = self._load_of[message.id]
            server_time = load.batch.server_time(now)
            if now > load.start_by:
                self._release(message)
            elif message.expires_at is not None and message.expires_at <= server_time:
                self._refuse(message, None, Burial(message.id, "expired", "expired before it was sent", 0))
                queue.extend(self._following(message))
            else:
                ready.append(message)
                self._sent[message.id] = (message, now)
        if ready:
            try:
                self._publisher.publish(ready, server_time)
                self._after_publish()
            except BrokerOutage as error:
                self._give_up(classify(error))

    def _give_up(self, why: Failure) -> None:
        self.abandon()
        self._outage = why

    def _check_blocked(self, reason: str) -> None:
        """The publisher waits with a blocked broker for as long as it takes; our leases do not."""
        oldest = next((sent_at for _, sent_at in self._sent.values()), None)
        if oldest is not None and self._clock() - oldest > self._send_timeout_seconds:
            self._give_up(failure("Blocked", f"the broker takes no messages: {reason}"))

    # -- judging ------------------------------------------------------------------------------------------------------

    def _resolve(self, outcome: Outcome) -> list[Message]:
        """Judge one message; returns what of its key is to be sent now."""
        message, sent_at = self._sent.pop(outcome.message.id)
        why = outcome.failure
        if why is None:
            self._answered = True
            verdicts = self._verdicts_for(message)
            verdicts.confirmed.append(message)
            verdicts.publish_seconds.append(self._clock() - sent_at)
            return self._following(message)
        if why.kind is FailureKind.OUTAGE:
            self._outage = why
            self._defer(message)
            return []
        self._refuse(message, why, self._policy.verdict(message, why))
        if why.kind is FailureKind.PERMANENT:
            return self._following(message)
        self._answered = True
        for behind in self._lanes.failed(message):
            self._release(behind)
        return []

    def _following(self, message: Message) -> list[Message]:
        following = self._lanes.confirmed(message)
        return [] if following is None else [following]

    def _refuse(self, message: Message, why: Failure | None, decision: Refusal | Burial) -> None:
        self._verdicts_for(message).refused.append(Refused(message, why, decision))

    def _release(self, message: Message) -> None:
        for each in (message, *self._lanes.failed(message)):
            self._verdicts_for(each).released.append(each)

    def _defer(self, message: Message) -> None:
        self._sent.pop(message.id, None)
        for each in (message, *self._lanes.failed(message)):
            self._verdicts_for(each).deferred.append(each)

    def _verdicts_for(self, message: Message) -> Settlement:
        """Where the one verdict on this message goes."""
        load = self._load_of.pop(message.id)
        load.unresolved -= 1
        return load.verdicts
