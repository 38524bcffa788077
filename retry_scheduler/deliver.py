"""
Deliver one claimed batch: pipelined, one message per ordering key at a time, each with one verdict.

    confirmed  the broker has it
    refused    the broker said no: backoff, or the dead letters when its attempts are used up, it has expired or can
               never be sent
    deferred   the broker is away (or its answer did not come): no attempt is spent
    released   not sent: an earlier message of its key failed, its lease is too short for an answer, or we shut down

A message is not sent unless its lease outlasts the send timeout. A message that is buried for good reason (it has
expired, it is undecodable) does not hold up its key; one that ran out of attempts ends its key's turn, because until
it is buried it might still be delivered by somebody else.

Nothing here talks to the database: verdicts are handed out as they become known, at once on shutdown.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator

from outbox.delivery.lanes import Lanes
from outbox.delivery.outcome import Outcome
from outbox.delivery.publisher import Publisher
from outbox.errors import BrokerOutage
from outbox.failures import Failure, FailureKind, classify, failure
from outbox.message import Message
from outbox.retry_policy import RetryPolicy
from outbox.store import Burial, Refusal
from retry_scheduler.claim import Batch
from retry_scheduler.verdicts import Refused, Verdicts

WAIT_SECONDS = 0.1
"""How long to wait for answers before looking at the clock, and whether to stop."""

REPORT_SECONDS = 1.0
"""How long verdicts are kept back while others are awaited: a long key must not hold up what is delivered."""


class Delivery:
    def __init__(
        self,
        batch: Batch,
        publisher: Publisher,
        policy: RetryPolicy,
        *,
        send_timeout_seconds: float,
        shutdown_timeout_seconds: float,
        stop_requested: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._batch = batch
        self._publisher = publisher
        self._policy = policy
        self._send_timeout_seconds = send_timeout_seconds
        self._shutdown_timeout_seconds = shutdown_timeout_seconds
        self._stop_requested = stop_requested
        self._clock = clock
        self._start_by = batch.lease_ends_at - send_timeout_seconds
        self._lanes = Lanes()
        self._sent: dict[int, tuple[Message, float]] = {}
        self._verdicts = Verdicts(batch.claim)
        self.answered = False
        """The broker confirmed or refused a message."""
        self.outage: Failure | None = None
        """Why the rest of the batch was deferred."""

    def run(self) -> Iterator[Verdicts]:
        """Every message of the batch comes out in exactly one of the verdicts."""
        try:
            self._send([message for message in self._batch.messages if self._lanes.admit(message)])
            stop_by = None
            report_at = self._clock() + REPORT_SECONDS
            while self._sent:
                if stop_by is None and self._stop_requested():
                    stop_by = self._clock() + self._shutdown_timeout_seconds
                    report_at = 0.0
                    self._verdicts.released += self._lanes.drain()
                self._receive()
                if stop_by is not None and self._clock() >= stop_by:
                    break
                if self._clock() >= report_at:
                    report_at = self._clock() + REPORT_SECONDS
                    yield from self._report()
        except BrokerOutage as error:
            self.outage = classify(error)
        if self._sent:
            self._give_up()
        self._verdicts.deferred += self._lanes.drain()
        yield from self._report()

    def _send(self, messages: Iterable[Message]) -> None:
        now = self._clock()
        server_time = self._batch.server_time(now)
        in_time = now <= self._start_by
        ready: list[Message] = []
        queue = deque(messages)
        while queue:
            message = queue.popleft()
            if not in_time:
                self._verdicts.released += [message, *self._lanes.failed(message)]
            elif message.expires_at is not None and message.expires_at <= server_time:
                burial = Burial(message.id, "expired", "expired before it was sent", 0)
                self._verdicts.refused.append(Refused(message, None, burial))
                queue.extend(self._next(message))
            else:
                ready.append(message)
                self._sent[message.id] = (message, now)
        if ready:
            self._publisher.publish(ready, server_time)

    def _receive(self) -> None:
        following: list[Message] = []
        for outcome in self._publisher.collect(WAIT_SECONDS):
            following += self._resolve(outcome)
        self._send(following)
        if (blocked := self._publisher.blocked) is not None:
            # The publisher waits with a blocked broker for as long as it takes; the lease does not.
            oldest = min((sent_at for _, sent_at in self._sent.values()), default=self._clock())
            if self._clock() - oldest > self._send_timeout_seconds:
                self.outage = failure("Blocked", f"the broker takes no messages: {blocked}")
                self._give_up()

    def _resolve(self, outcome: Outcome) -> list[Message]:
        """Judge one message; returns what of its key is to be sent now."""
        message, sent_at = self._sent.pop(outcome.message.id)
        why = outcome.failure
        if why is None:
            self.answered = True
            self._verdicts.confirmed.append(message)
            self._verdicts.publish_seconds.append(self._clock() - sent_at)
            return self._next(message)
        if why.kind is FailureKind.PERMANENT:
            self._verdicts.refused.append(Refused(message, why, Burial(message.id, "undecodable", why.text, 1)))
            return self._next(message)
        if why.kind is FailureKind.OUTAGE:
            self.outage = why
            self._verdicts.deferred += [message, *self._lanes.failed(message)]
            return []
        self.answered = True
        backoff = self._policy.backoff(message.event_type, message.attempts)
        self._verdicts.refused.append(
            Refused(
                message,
                why,
                Burial(message.id, "max attempts", why.text, 1)
                if backoff is None
                else Refusal(message.id, why.text, backoff),
            )
        )
        self._verdicts.released += self._lanes.failed(message)
        return []

    def _next(self, message: Message) -> list[Message]:
        following = self._lanes.confirmed(message)
        return [] if following is None else [following]

    def _give_up(self) -> None:
        """Take the answers that have come, and defer what has none."""
        self._publisher.close()
        try:
            while outcomes := self._publisher.collect(0):
                for outcome in outcomes:
                    following = self._resolve(outcome)
                    self._verdicts.deferred += following
                    for message in following:
                        self._verdicts.deferred += self._lanes.failed(message)
        except BrokerOutage:
            pass  # there is no connection any more: that was the last of them
        self._publisher.take_unconfirmed()
        self._verdicts.deferred += [message for message, _ in self._sent.values()]
        self._sent.clear()

    def _report(self) -> Iterator[Verdicts]:
        if self._verdicts:
            verdicts, self._verdicts = self._verdicts, Verdicts(self._batch.claim)
            yield verdicts
