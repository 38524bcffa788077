"""
Decision: what the retry policy chooses for a message that was not delivered: another attempt, or the dead letters.

The reasons of dead letters are defined here only; the CHECK constraint of outbox_dead_letter allows the same four.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

DeadLetterReason = Literal["max attempts", "expired", "rejected", "undecodable"]
DEAD_LETTER_REASONS: tuple[DeadLetterReason, ...] = get_args(DeadLetterReason)


class Retry(NamedTuple):
    """The attempt counts, and the message is sent again after the backoff."""

    id: int
    error: str
    backoff_seconds: float


class Burial(NamedTuple):
    """The message moves to the dead letters."""

    id: int
    reason: DeadLetterReason
    error: str
    spent: int
    """Attempts to add: 1 if the broker refused the message, 0 if it was not sent."""


Decision = Retry | Burial
