"""
AmqpDeclarer: declare what rows want declared, on a channel of its own, once per connection.

A declaration that the broker refuses fails its rows and nothing else: the channel is not the one that messages use.
Some cost the whole connection, such as an exchange of a type whose plugin is missing. Those are not tried again for a
while, so that they cost it once and not forever.
"""

from __future__ import annotations

from collections.abc import Iterable
from time import monotonic
from typing import Any

from amqp.exceptions import AMQPError, ChannelError, FrameSyntaxError

from outrider.delivery.amqp_connection import AmqpConnection
from outrider.delivery.declarations import Declared, declare
from outrider.errors import BrokerOutage, UndecodableMessage
from outrider.failures import Failure, classify, failure
from outrider.storage.message import Message

FATAL_SECONDS = 60.0

# AMQP's classes of methods `exchange` and `queue`.
_DECLARING_CLASSES = (40, 50)


class AmqpDeclarer:
    def __init__(self) -> None:
        self._declared = Declared()
        self._channel: Any = None
        self._fatal: dict[str | bytes, tuple[Failure, float]] = {}

    def declare_for(self, link: AmqpConnection, messages: Iterable[Message]) -> dict[str | bytes, Failure]:
        """Declare what is not declared yet; what was refused, with the reason. Raises what means a lost connection."""
        refusals: dict[str | bytes, Failure] = {}
        for text in {message.declarations for message in messages if message.declarations}:
            if text not in self._declared and (refusal := self._fate(text) or self._declare(link, text)) is not None:
                refusals[text] = refusal
        return refusals

    def has_declared(self, messages: Iterable[Message]) -> bool:
        """Whether all that these want is declared on this connection."""
        return all(message.declarations in self._declared for message in messages if message.declarations)

    def forget(self, text: str | bytes) -> None:
        """The broker lost it (a queue was deleted): declare it again next time."""
        self._declared.forget(text)

    def disconnected(self) -> None:
        self._declared.clear()
        self._channel = None

    def _fate(self, text: str | bytes) -> Failure | None:
        refusal, until = self._fatal.get(text, (None, 0.0))
        if refusal is not None and monotonic() > until:
            del self._fatal[text]
            return None
        return refusal

    def _declare(self, link: AmqpConnection, text: str | bytes) -> Failure | None:
        if self._channel is None:
            self._channel = link.open_channel()
        try:
            declare(text, self._channel)
        except (ChannelError, UndecodableMessage) as error:
            return classify(error)  # py-amqp has opened the channel again
        except Exception as error:
            if _is_loss(error):
                if (getattr(error, "method_sig", None) or (0,))[0] in _DECLARING_CLASSES:
                    self._fatal[text] = (failure("DeclarationRefused", str(error)), monotonic() + FATAL_SECONDS)
                raise
            # Values that py-amqp cannot encode, or of which kombu can make nothing.
            return failure("Undecodable", f"its declarations cannot be made: {type(error).__name__}")
        self._declared.remember(text)
        return None


def _is_loss(error: Exception) -> bool:
    """Whether the connection is gone. py-amqp raises FrameSyntaxError itself, for a value that it cannot encode."""
    if isinstance(error, FrameSyntaxError):
        return error.method_sig is not None
    return isinstance(error, OSError | AMQPError | BrokerOutage)
