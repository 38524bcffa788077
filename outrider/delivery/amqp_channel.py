"""
PublishChannel: one AMQP channel in confirm mode, and the messages in flight on it.

Answers are matched exactly. A confirm carries the tag of its message; a returned message carries none, but its
message_id, which is unique among the messages in flight here (`holds` tells; the owner sends a second one elsewhere),
and RabbitMQ sends it before the confirm of the same message.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import takewhile
from struct import Struct
from time import monotonic
from typing import Any, NamedTuple

from amqp import spec

from outrider.delivery.amqp_connection import AmqpConnection
from outrider.failures import Failure, failure, outage
from outrider.storage.message import Message

FRAME_OVERHEAD = 8  # type, channel and size in front of a frame's payload, the end mark behind it
_METHOD_FRAME, _HEADER_FRAME, _BODY_FRAME = 1, 2, 3
_FRAME_END = b"\xce"
_METHOD = Struct(">BHIHH")  # frame type, channel, size, class and number of the method
_HEADER = Struct(">cBHIHHQ")  # the end of the frame before, frame type, channel, size, class, weight, size of the body
_BODY = Struct(">cBHI")  # the end of the frame before, frame type, channel, size


class Envelope(NamedTuple):
    """A message, encoded and on its way."""

    order: int
    message: Message
    message_id: str
    exchange: str
    arguments: bytes
    properties: bytes


def frames_of(channel: int, envelope: Envelope, frame_max: int) -> list[bytes]:
    """
    The frames of a message, in pieces to be joined. py-amqp's frame writer makes the same of it, in twice the time.
    """
    arguments, properties, body = envelope.arguments, envelope.properties, envelope.message.payload
    class_id, method_id = spec.Basic.Publish
    pieces = [
        _METHOD.pack(_METHOD_FRAME, channel, 4 + len(arguments), class_id, method_id),
        arguments,
        _HEADER.pack(_FRAME_END, _HEADER_FRAME, channel, 12 + len(properties), class_id, 0, len(body)),
        properties,
    ]
    room = frame_max - FRAME_OVERHEAD
    for start in range(0, len(body), room):
        piece = body[start : start + room]
        pieces += (_BODY.pack(_FRAME_END, _BODY_FRAME, channel, len(piece)), piece)
    pieces.append(_FRAME_END)
    return pieces


class PublishChannel:
    def __init__(self, link: AmqpConnection, answer: Callable[[Envelope, Failure | None], None]) -> None:
        """Open the channel; `answer` is called for each message that the broker confirmed (None) or refused."""
        self._link = link
        self._answer = answer
        self._in_flight: dict[int, Envelope] = {}
        self._tags: dict[str, int] = {}
        self._returned: dict[int, Failure] = {}
        self._last_tag = 0
        # (last tag, time of sending) of each batch: a time per message would cost more than it tells.
        self._batches: deque[tuple[int, float]] = deque()
        self._channel = link.open_confirm_channel(self._on_ack)
        self._channel.events["basic_nack"].add(self._on_nack)
        self._channel.events["basic_return"].add(self._on_return)
        self._number: int = self._channel.channel_id

    def __len__(self) -> int:
        return len(self._in_flight)

    def holds(self, message_id: str) -> bool:
        """Whether a message of this id is in flight here: a second one could not be told from it when returned."""
        return message_id in self._tags

    @property
    def closed_with(self) -> Exception | None:
        """Why the broker closed the channel. Whatever was sent after its cause is lost."""
        return self._channel.closed_with

    def send(self, envelope: Envelope) -> None:
        """Put the message into the link's buffer: basic.publish, its properties, its body."""
        self._link.put(*frames_of(self._number, envelope, self._link.frame_max))
        self._last_tag = tag = self._last_tag + 1
        self._in_flight[tag] = envelope
        self._tags[envelope.message_id] = tag

    def mark_sent(self) -> None:
        """What was put into the buffer leaves now: its time runs."""
        if self._last_tag and (not self._batches or self._batches[-1][0] < self._last_tag):
            self._batches.append((self._last_tag, monotonic()))

    def restart_clock(self) -> None:
        """The broker was blocked and reads again: what waited is not late."""
        self._batches.clear()
        self.mark_sent()

    def oldest_seconds(self) -> float:
        """For how long the oldest message in flight has waited for its answer."""
        oldest = next(iter(self._in_flight), None)
        if oldest is None:
            self._batches.clear()
            return 0.0
        while self._batches and self._batches[0][0] < oldest:
            self._batches.popleft()
        return monotonic() - self._batches[0][1] if self._batches else 0.0

    def drain(self) -> list[Envelope]:
        """Give up the channel: answer for messages that were returned, and take out the others, in order."""
        for tag, why in self._returned.items():
            self._answer(self._in_flight.pop(tag), why)
        left = list(self._in_flight.values())
        self._in_flight.clear()
        self._returned.clear()
        self._tags.clear()
        return left

    def confirm_close(self) -> None:
        """Answer the broker's close of the channel."""
        self._link.confirm_close(self._channel)

    def _on_ack(self, tag: int, multiple: bool) -> None:
        self._settle(tag, multiple, None)

    def _on_nack(self, tag: int, multiple: bool) -> None:
        self._settle(tag, multiple, failure("Nacked", "the broker answered basic.nack"))

    def _on_return(self, error: Any, exchange: str, routing_key: str, returned: Any) -> None:
        tag = self._tags.get(returned.properties.get("message_id", ""))
        if tag is None:
            # To go on would confirm a message that was not delivered.
            raise outage("ConnectionClosed", "the broker returned a message that is not in flight")
        self._returned[tag] = failure(
            "NoRoute", f"{error.reply_text} (exchange {exchange!r}, routing key {routing_key!r})"
        )

    def _settle(self, tag: int, multiple: bool, refusal: Failure | None) -> None:
        if not multiple:
            self._settle_one(tag, refusal)
            return
        for confirmed in list(takewhile(lambda each: each <= tag, self._in_flight)):
            self._settle_one(confirmed, refusal)

    def _settle_one(self, tag: int, refusal: Failure | None) -> None:
        envelope = self._in_flight.pop(tag, None)
        if envelope is None:
            return
        del self._tags[envelope.message_id]
        if self._returned:
            refusal = self._returned.pop(tag, None) or refusal
        self._answer(envelope, refusal)
