"""
AmqpDeclarer: declares the queues and exchanges of rows, once per connection, on a channel of its own.

A declaration that the broker refuses fails the rows that have it. Some declarations end the whole connection: with a
close that names them, for example an exchange type whose plugin is missing, or with a reset. A declaration that a close
names, or that ended two connections, is not sent again for CONNECTION_LOSS_SECONDS, so that it does not end every new
connection too. (The publisher declares while no message is in flight that could be the cause.)
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from time import monotonic
from typing import Any

from amqp.exceptions import AMQPError, ChannelError, FrameSyntaxError

from outrider.delivery.amqp_connection import AmqpConnection
from outrider.delivery.declarations import declare
from outrider.errors import BrokerOutage, UndecodableMessage
from outrider.failures import Failure, classify, failure, text_of

CONNECTION_LOSS_SECONDS = 60.0

# AMQP's method classes `exchange` and `queue`.
_DECLARING_CLASSES = (40, 50)
_POSSIBLY_BY_A_DECLARATION = ("ConnectionLost", "ConnectionClosed")


class AmqpDeclarer:
    """`declarations` is the text of the row's column."""

    def __init__(self) -> None:
        self._declared: set[str] = set()
        self._channel: Any = None
        self._closed_connection: dict[str, tuple[Failure, float]] = {}
        self._lost_once: dict[str, float] = {}

    def is_declared(self, declarations: str) -> bool:
        return declarations in self._declared

    def known_refusal(self, declarations: str) -> Failure | None:
        """The failure of a declaration that made the broker close the connection a short while ago."""
        refusal, until = self._closed_connection.get(declarations, (None, 0.0))
        if refusal is not None and monotonic() > until:
            del self._closed_connection[declarations]
            return None
        return refusal

    def declare(self, connection: AmqpConnection, texts: Iterable[str]) -> dict[str, Failure]:
        """Declare these; returns those that were refused. Raises when the connection is lost."""
        refusals: dict[str, Failure] = {}
        for text in texts:
            if (refusal := self.known_refusal(text) or self._declare(connection, text)) is not None:
                refusals[text] = refusal
        return refusals

    def create_exchange(self, connection: AmqpConnection, name: str) -> Failure | None:
        """Create a missing exchange: a durable topic exchange, as a worker does. Returns the broker's refusal."""
        text = json.dumps([{"name": name, "type": "topic"}])
        self.forget(text)  # it may have been created on this connection, and deleted since
        return self._declare(connection, text)

    def forget(self, declarations: str) -> None:
        """Its queue may have been deleted: declare it again next time."""
        self._declared.discard(declarations)

    def disconnected(self) -> None:
        self._declared.clear()
        self._channel = None

    def _declare(self, connection: AmqpConnection, text: str) -> Failure | None:
        if self._channel is None:
            self._channel = connection.open_channel()
        try:
            declare(text, self._channel, self._declared)
        except (ChannelError, UndecodableMessage) as error:
            return classify(error)  # py-amqp has reopened the channel
        except Exception as error:
            if _is_connection_loss(error):
                self._note_loss(text, error)
                raise
            # py-amqp cannot encode one of the values, or kombu cannot use it.
            return failure("Undecodable", f"its declarations cannot be made: {type(error).__name__}")
        self._lost_once.pop(text, None)
        return None

    def _note_loss(self, text: str, error: Exception) -> None:
        now = monotonic()
        named = (getattr(error, "method_sig", None) or (0,))[0] in _DECLARING_CLASSES
        if not named:
            if classify(error).error not in _POSSIBLY_BY_A_DECLARATION:
                return
            self._lost_once = {each: at for each, at in self._lost_once.items() if now - at < CONNECTION_LOSS_SECONDS}
            if text not in self._lost_once:
                self._lost_once[text] = now
                return
        refusal = failure("DeclarationRefused", text_of(error))
        self._closed_connection[text] = (refusal, now + CONNECTION_LOSS_SECONDS)
        self._lost_once.pop(text, None)


def _is_connection_loss(error: Exception) -> bool:
    """py-amqp raises FrameSyntaxError also for a value that it cannot encode; then it has no method."""
    if isinstance(error, FrameSyntaxError):
        return error.method_sig is not None
    return isinstance(error, OSError | AMQPError | BrokerOutage)
