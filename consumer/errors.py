"""Exceptions that a handler raises, and exceptions that the worker raises internally while it handles a message."""

from __future__ import annotations

from outrider.errors import BrokerError, OutboxError


class Reject(OutboxError):
    """Raised by a handler to bury the message at once, with this reason and without a retry."""


class Undecodable(OutboxError):
    """The body does not match what the handler takes. The text says what is wrong and never quotes the body."""


class Expired(OutboxError):
    """The message expired before its handler started."""


class TopologyError(BrokerError):
    """A queue, exchange or permission that a consumer needs is missing at the broker; the text names it."""


class NotStarted(Exception):
    """The message was received but its handler did not start: the message returns to its queue."""
