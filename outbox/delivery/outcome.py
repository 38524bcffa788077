"""Outcome: what became of one message that was sent."""

from __future__ import annotations

from typing import NamedTuple

from outbox.failures import Failure
from outbox.message import Message


class Outcome(NamedTuple):
    message: Message
    failure: Failure | None
    """None: the broker confirmed the message."""
