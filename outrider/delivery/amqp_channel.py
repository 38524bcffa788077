"""
PublishChannel: one AMQP channel in confirm mode, and the messages in flight on it.

A confirm names its message by the delivery tag. A returned message has no tag: it is found by its message_id, which is
unique among the messages in flight on the channel (check `has_in_flight` before sending). RabbitMQ sends the return
before the confirm of the same message.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import takewhile
from time import monotonic
from typing import Any

from outrider.delivery.amqp_connection import AmqpConnection
from outrider.delivery.amqp_frames import Envelope, frames_of
from outrider.failures import Failure, failure, no_route, outage


class PublishChannel:
    def __init__(self, connection: AmqpConnection, on_outcome: Callable[[Envelope, Failure | None], None]) -> None:
        """Open the channel. `on_outcome` is called for each message that the broker confirmed (None) or refused."""
        self._connection = connection
        self._on_outcome = on_outcome
        self._in_flight: dict[int, Envelope] = {}
        self._tags: dict[str, int] = {}
        self._returned: dict[int, Failure] = {}
        self._last_tag = 0
        # (last tag, time of sending) of each batch: one time per batch is precise enough.
        self._batches: deque[tuple[int, float]] = deque()
        self._channel = connection.open_confirm_channel(self._on_ack)
        self._channel.events["basic_nack"].add(self._on_nack)
        self._channel.events["basic_return"].add(self._on_return)
        self._number: int = self._channel.channel_id

    def __len__(self) -> int:
        return len(self._in_flight)

    def has_in_flight(self, message_id: str) -> bool:
        """A second message with this id could not be told from the first one when it is returned."""
        return message_id in self._tags

    @property
    def closed_with(self) -> Exception | None:
        """Why the broker closed the channel. It ignored everything that was sent after the cause."""
        return self._channel.closed_with

    def send(self, envelope: Envelope) -> None:
        """Put the message into the connection's buffer."""
        self._connection.put(frames_of(self._number, envelope, self._connection.frame_max))
        self._last_tag = tag = self._last_tag + 1
        self._in_flight[tag] = envelope
        self._tags[envelope.message_id] = tag

    def mark_sent(self) -> None:
        """The buffer is flushed now: the send timeout of its messages starts."""
        if self._last_tag and (not self._batches or self._batches[-1][0] < self._last_tag):
            self._batches.append((self._last_tag, monotonic()))

    def restart_send_timeout(self) -> None:
        """After the broker did not read for a while: the messages that waited are not late."""
        self._batches.clear()
        self.mark_sent()

    def oldest_seconds(self) -> float:
        """How long the oldest message in flight has waited for its confirm."""
        oldest = next(iter(self._in_flight), None)
        if oldest is None:
            self._batches.clear()
            return 0.0
        while self._batches and self._batches[0][0] < oldest:
            self._batches.popleft()
        return monotonic() - self._batches[0][1] if self._batches else 0.0

    def take_unanswered(self) -> list[Envelope]:
        """For a channel that is closed: fail the messages that were returned, and take out the others, in order."""
        for tag, reason in self._returned.items():
            self._on_outcome(self._in_flight.pop(tag), reason)
        unanswered = list(self._in_flight.values())
        self._in_flight.clear()
        self._returned.clear()
        self._tags.clear()
        return unanswered

    def confirm_close(self) -> None:
        """Answer the broker's close of the channel."""
        self._connection.confirm_close(self._channel)

    def _on_ack(self, tag: int, multiple: bool) -> None:
        self._resolve(tag, multiple, None)

    def _on_nack(self, tag: int, multiple: bool) -> None:
        self._resolve(tag, multiple, failure("Nacked", "the broker answered basic.nack"))

    def _on_return(self, _error: Any, exchange: str, routing_key: str, returned: Any) -> None:
        tag = self._tags.get(returned.properties.get("message_id", ""))
        if tag is None:
            # Without this the confirm that follows would count an undelivered message as confirmed.
            raise outage("ConnectionClosed", "the broker returned a message that is not in flight")
        self._returned[tag] = no_route(exchange, routing_key)

    def _resolve(self, tag: int, multiple: bool, refusal: Failure | None) -> None:
        if not multiple:
            self._resolve_one(tag, refusal)
            return
        for confirmed in list(takewhile(lambda each: each <= tag, self._in_flight)):
            self._resolve_one(confirmed, refusal)

    def _resolve_one(self, tag: int, refusal: Failure | None) -> None:
        envelope = self._in_flight.pop(tag, None)
        if envelope is None:
            return
        del self._tags[envelope.message_id]
        if self._returned:
            refusal = self._returned.pop(tag, None) or refusal
        self._on_outcome(envelope, refusal)
