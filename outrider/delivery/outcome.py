"""Outcome: the result of publishing one message."""

from __future__ import annotations

from typing import NamedTuple

from outrider.failures import Failure
from outrider.storage.message import Message


class Outcome(NamedTuple):
    message: Message
    failure: Failure | None
    """None: the broker confirmed the message."""
