"""What a handler raises to decide a message's fate, and what the worker raises to itself."""

from __future__ import annotations

from outrider.errors import BrokerError, OutboxError


class Reject(OutboxError):
    """
    Raised by a handler: this message can never be handled. It goes to the dead letters at once, with this reason, and
    is not tried again.
    """


class Undecodable(OutboxError):
    """A message whose body is not what its handler takes. The text names what is wrong, and never repeats the body."""


class Expired(OutboxError):
    """A message whose time was over before its handler could begin."""


class TopologyError(BrokerError):
    """The broker lacks something that a consumer needs, or does not let us have it; the text names it."""


class NotStarted(Exception):
    """A message that was received and not begun: it goes back to its queue."""
