"""
When is a refused message tried again? Pure: attempts so far in, seconds or "no more" out.

A refused message waits for its backoff, or is buried: because its attempts are used up (`max attempts`), or at once,
because it can never be sent (`undecodable`) or because trying again does not heal its error (`rejected`, see the
setting reject_errors).

The n-th failure waits `min(backoff * 2^(n-1) + random(0, 0.1 * backoff), max_backoff)` seconds; the failure that uses
up `max_attempts` buries the message. With the defaults (120 s, 5 attempts, at most 3600 s): 120 to 132 s, 240 to 252 s,
480 to 492 s, 960 to 972 s, then the dead letters. Outages spend no attempt and never come here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from random import random

from outrider.failures import Failure, FailureKind
from outrider.settings.models import RetryRule, ServiceSettings
from outrider.storage.message import Message
from outrider.storage.store import Burial, Refusal


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The defaults, and the rules for message types that differ; the first rule that matches wins."""

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

    def verdict(self, message: Message, failure: Failure) -> Refusal | Burial:
        """What becomes of a message that was refused. Not for outages: they are nobody's failure."""
        if failure.kind is FailureKind.PERMANENT:
            return Burial(message.id, "undecodable", failure.text, 0)
        if failure.error in self.reject_errors:
            return Burial(message.id, "rejected", failure.text, 1)
        backoff = self.backoff(message.event_type, message.attempts)
        if backoff is None:
            return Burial(message.id, "max attempts", failure.text, 1)
        return Refusal(message.id, failure.text, backoff)

    def backoff(self, event_type: str, attempts: int) -> float | None:
        """Seconds to wait after another failure of a message that had `attempts` before; None: bury it."""
        rule = next((rule for rule in self.rules if fnmatchcase(event_type, rule.match)), None)
        max_attempts = (rule and rule.max_attempts) or self.max_attempts
        backoff = (rule and rule.backoff_seconds) or self.backoff_seconds
        longest = (rule and rule.max_backoff_seconds) or self.max_backoff_seconds
        if attempts + 1 >= max_attempts:
            return None
        # The exponent is capped: a float overflows long before anybody waits that long.
        return min(backoff * 2.0 ** min(attempts, 60) + self.jitter() * 0.1 * backoff, longest)
