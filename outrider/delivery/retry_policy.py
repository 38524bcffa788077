"""
RetryPolicy: decides whether a message that the broker refused is retried after a backoff, or buried.

Pure: no clock, no database. A message is buried when its attempts are used up (`max attempts`), when it can never be
sent (`undecodable`), or when its error is one of the setting reject_errors (`rejected`). Outages spend no attempt and
are not decided here.

A message that no queue accepts, or whose exchange does not exist, was probably published before its consumer was
started for the first time. It waits 5 s after the first failure, 30 s after the second and 180 s after the third (plus
up to a tenth, and never longer than usual), so that it is delivered soon after the consumer has begun.

The n-th failure waits `min(backoff * 2^(n-1) + random(0, 0.1 * backoff), max_backoff)` seconds; the failure that uses
up `max_attempts` buries the message. With the defaults (120 s, 5 attempts, at most 3600 s): 120 to 132 s, 240 to 252 s,
480 to 492 s, 960 to 972 s, then the dead letters.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from random import random

from outrider.failures import Failure, FailureKind
from outrider.settings.service import RetryRule, ServiceSettings
from outrider.storage.decision import Burial, Decision, Retry
from outrider.storage.message import Message

_NOT_ROUTED = frozenset({"NoRoute", "NotFound"})
NOT_ROUTED_SECONDS = 5.0
NOT_ROUTED_FACTOR = 6.0


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The defaults, and rules for event types that differ from them. The first rule that matches applies."""

    max_attempts: int
    backoff_seconds: float
    max_backoff_seconds: float
    rules: Sequence[RetryRule] = ()
    reject_errors: Collection[str] = ()
    jitter: Callable[[], float] = random  # in [0, 1)

    @classmethod
    def from_settings(cls, settings: ServiceSettings) -> RetryPolicy:
        return cls(
            settings.max_attempts,
            settings.backoff_seconds,
            settings.max_backoff_seconds,
            settings.retry_rules,
            settings.reject_errors,
        )

    def decide(self, message: Message, failure: Failure) -> Decision:
        """Retry or bury a message after this failure, which is not an outage."""
        if failure.kind is FailureKind.PERMANENT:
            return Burial(message.id, "undecodable", failure.text, 0)
        if failure.error in self.reject_errors:
            return Burial(message.id, "rejected", failure.text, 1)
        backoff = self.backoff(message.event_type, message.attempts)
        if backoff is None:
            return Burial(message.id, "max attempts", failure.text, 1)
        if failure.error in _NOT_ROUTED:
            first = NOT_ROUTED_SECONDS * (1 + 0.1 * self.jitter())
            backoff = min(backoff, first * NOT_ROUTED_FACTOR ** min(message.attempts, 60))
        return Retry(message.id, failure.text, backoff)

    def backoff(self, event_type: str, attempts: int) -> float | None:
        """Seconds to wait after one more failure of a message with `attempts` failures before; None: bury it."""
        rule = next((rule for rule in self.rules if fnmatchcase(event_type, rule.match)), None)
        max_attempts = (rule and rule.max_attempts) or self.max_attempts
        backoff = (rule and rule.backoff_seconds) or self.backoff_seconds
        longest = (rule and rule.max_backoff_seconds) or self.max_backoff_seconds
        if attempts + 1 >= max_attempts:
            return None
        # The exponent is capped because a float would overflow.
        return min(backoff * 2.0 ** min(attempts, 60) + self.jitter() * 0.1 * backoff, longest)
