"""
AmqpPublisher: pipelined publisher confirms for RabbitMQ and other AMQP 0-9-1 brokers.

Messages go out on the fast channel, with as many in flight as the caller likes; every one is `mandatory`, so that an
unroutable message is refused and not lost. A message that makes the broker close the channel takes everything sent
after it along, without an answer. Then the fast channel is opened anew, and what was unanswered goes to the careful
channel, with one message in flight at a time, where the culprit fails alone. So do, from the start: messages to an
exchange that was just refused, and a second message with a message_id that is in flight.

A message can be sent twice when its channel dies after the broker took it and before the confirm arrived.

When the broker closes the whole connection with a protocol error while several messages are in flight, all of them are
suspects: after the reconnect they go through the careful channel with nothing else in flight, and the one with which
the connection dies again fails, instead of keeping everybody out forever.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from time import monotonic
from typing import Any

from amqp.exceptions import AMQPError
from amqp.serialization import dumps

from outrider.delivery.amqp_channel import Envelope, PublishChannel
from outrider.delivery.amqp_connection import AmqpConnection
from outrider.delivery.amqp_declarations import AmqpDeclarer
from outrider.delivery.amqp_moulds import Moulds
from outrider.delivery.amqp_properties import PropertiesEncoder
from outrider.delivery.broker_message import to_broker_message
from outrider.delivery.broker_url import address_of
from outrider.delivery.outcome import Outcome
from outrider.errors import BrokerOutage, UndecodableMessage
from outrider.failures import Failure, classify, failure, outage
from outrider.storage.message import Message

FLUSH_BYTES = 4 * 1024 * 1024  # a batch of large messages leaves in several writes
HEADER_FRAME_OVERHEAD = 20  # frame header and end (8), class, weight and body size (12)
WAIT_SLICE_SECONDS = 1.0  # while waiting for answers, how often to look for late ones
SUSPICION_SECONDS = 60.0
MAX_REMEMBERED = 10_000

_MANDATORY, _IMMEDIATE = True, False
# Refusals that concern every message to the same exchange.
_ABOUT_THE_EXCHANGE = frozenset({"NotFound", "AccessRefused"})
# Refusals after which the row's queues may be gone, whatever was declared before.
_ABOUT_A_MISSING_QUEUE = frozenset({"NoRoute", "NotFound"})


class AmqpPublisher:
    """See Publisher for the contract."""

    def __init__(self, clients: Sequence[Any], *, send_timeout_seconds: float) -> None:
        self._clients = deque(clients)
        self._send_timeout_seconds = send_timeout_seconds
        self._link: AmqpConnection | None = None
        self._loss: BrokerOutage | None = None
        self._fast: PublishChannel | None = None
        self._careful: PublishChannel | None = None
        self._waiting: deque[Envelope] = deque()  # for the careful channel
        self._was_held_up = False
        self._declarer = AmqpDeclarer()
        self._refused_exchanges: set[str] = set()
        self._suspects: set[int] = set()
        self._suspects_until = 0.0
        self._outcomes: list[Outcome] = []
        self._unconfirmed: list[Message] = []
        self._order = 0
        self._properties = PropertiesEncoder()
        self._moulds = Moulds(self._properties)
        self._arguments: dict[tuple[str, str], bytes] = {}

    def connect(self) -> None:
        if self._link is not None:
            return
        client = self._clients[0]
        link: AmqpConnection | None = None
        try:
            link = AmqpConnection(client)
            self._fast = PublishChannel(link, self._answer)
            link.limit_waits(self._send_timeout_seconds)
        except (OSError, AMQPError) as error:
            self._clients.rotate(-1)
            if link is not None:
                link.abandon()
            raise outage(error, address_of(client), connecting=True) from error
        self._link = link
        self._loss = None
        self._was_held_up = False

    @property
    def connected(self) -> bool:
        return self._link is not None

    def publish(self, messages: Sequence[Message], now: int) -> None:
        link = self._link
        if link is None or link.blocked is not None:
            self._unconfirmed.extend(messages)
            raise self._unusable()
        taken = unflushed_bytes = 0
        try:
            refusals = self._declarer.declare_for(link, messages)
            for message in messages:
                self._enqueue(link, message, now, refusals)
                taken += 1
                unflushed_bytes += len(message.payload)
                if unflushed_bytes > FLUSH_BYTES:
                    self._flush(link)
                    unflushed_bytes = 0
            self._flush(link)
        except Exception as error:
            raise self._lose(error, messages[taken:]) from error

    def collect(self, timeout_seconds: float) -> list[Outcome]:
        if (link := self._link) is not None:
            try:
                self._advance(link)
                deadline = monotonic() + timeout_seconds
                while not self._outcomes and self._unanswered() and (left := deadline - monotonic()) > 0:
                    link.wait(min(left, WAIT_SLICE_SECONDS))
                    self._advance(link)
            except Exception as error:
                self._lose(error)
        return self._hand_out()

    def take_unconfirmed(self) -> list[Message]:
        unconfirmed, self._unconfirmed = self._unconfirmed, []
        return unconfirmed

    def withdraw(self) -> list[Message]:
        withdrawn = [envelope.message for envelope in self._waiting]
        self._waiting.clear()
        return withdrawn

    @property
    def in_flight(self) -> int:
        return self._unanswered() + len(self._unconfirmed)

    def fileno(self) -> int | None:
        return self._link.fileno() if self._link is not None else None

    def takes_at_once(self, messages: Sequence[Message]) -> bool:
        # Messages for the careful channel are taken too: they are put aside, and then there is trouble.
        link = self._link
        return link is not None and link.blocked is None and not self.troubled and self._declarer.has_declared(messages)

    def arrived(self) -> list[Outcome]:
        if (link := self._link) is not None:
            try:
                self._take_arrived(link)
            except Exception as error:
                self._lose(error)
        return self._hand_out()

    @property
    def ready(self) -> bool:
        return bool(self._outcomes)

    @property
    def troubled(self) -> bool:
        fast, careful = self._fast, self._careful
        return (
            bool(self._waiting)
            or (fast is not None and fast.closed_with is not None)
            or (careful is not None and careful.closed_with is not None)
        )

    @property
    def wants_write(self) -> bool:
        return self._link is not None and self._link.wants_write

    def heartbeat(self) -> None:
        if (link := self._link) is None:
            raise self._unusable()
        try:
            link.read()  # the broker's heartbeats may have arrived while the caller was busy
            link.heartbeat()
        except Exception as error:
            raise self._lose(error) from error

    @property
    def blocked(self) -> str | None:
        return self._link.blocked if self._link is not None else None

    def close(self) -> None:
        if (link := self._link) is not None:
            link.close()  # confirms that are on the way still arrive
            self._let_go()

    def _unanswered(self) -> int:
        return len(self._fast or ()) + len(self._careful or ()) + len(self._waiting)

    def _enqueue(self, link: AmqpConnection, message: Message, now: int, refusals: dict[str | bytes, Failure]) -> None:
        """Encode one message and put it on its channel, or answer for it at once."""
        if refusals and message.declarations and message.declarations in refusals:
            self._outcomes.append(Outcome(message, refusals[message.declarations]))
            return
        try:
            envelope = self._encode(link, message, now)
        except Exception as error:
            # Whatever it is, it is about this row: as an outage it would keep all the others out.
            self._outcomes.append(Outcome(message, classify(error)))
            return
        fast = self._fast
        assert fast is not None
        if self._suspects or envelope.exchange in self._refused_exchanges or fast.holds(envelope.message_id):
            self._waiting.append(envelope)
        else:
            fast.send(envelope)

    def _encode(self, link: AmqpConnection, message: Message, now: int) -> Envelope:
        exchange, routing_key, message_id = message.exchange, message.routing_key, message.event_id
        properties = self._moulds.cast(message)
        if properties is None:
            wire = to_broker_message(message, now)
            exchange, routing_key, message_id = wire.exchange, wire.routing_key, wire.properties["message_id"]
            properties = self._properties.encode(wire)
            self._moulds.learn(message, wire)
        arguments = self._arguments.get((exchange, routing_key)) or self._encode_arguments(exchange, routing_key)
        if len(properties) + HEADER_FRAME_OVERHEAD > link.frame_max:
            # Sent nevertheless, it would make the broker close the connection.
            raise UndecodableMessage(f"headers and properties of {len(properties)} bytes exceed an AMQP frame")
        self._order += 1
        return Envelope(self._order, message, message_id, exchange, arguments, properties)

    def _encode_arguments(self, exchange: str, routing_key: str) -> bytes:
        """The arguments of basic.publish: the same for every message of a route."""
        try:
            encoded: bytes = dumps("Bssbb", (0, exchange, routing_key, _MANDATORY, _IMMEDIATE))
        except Exception as error:
            raise UndecodableMessage("its exchange or routing key is longer than AMQP's 255 bytes") from error
        if len(self._arguments) >= MAX_REMEMBERED:
            self._arguments.clear()
        self._arguments[exchange, routing_key] = encoded
        return encoded

    def _flush(self, link: AmqpConnection) -> None:
        if self._fast is not None:
            self._fast.mark_sent()
        link.flush()

    def _send_careful(self, link: AmqpConnection) -> bool:
        """The next message of the careful channel, once the one before has its answer. Whether it did anything."""
        if not self._waiting or link.blocked is not None:
            return False
        if self._careful is None:
            self._careful = PublishChannel(link, self._answer)
        if len(self._careful):
            return False
        self._careful.send(self._waiting.popleft())
        self._careful.mark_sent()
        link.flush()
        return True

    def _advance(self, link: AmqpConnection) -> None:
        """Take what arrived, mend what broke, and send what waits, until none of these leads to another."""
        self._take_arrived(link)
        while self._mend_fast(link) or self._mend_careful() or self._send_careful(link):
            link.read()  # opening a channel reads ahead: without this, frames would wait unseen behind the socket

    def _take_arrived(self, link: AmqpConnection) -> None:
        link.flush()
        link.read()
        self._check_lateness(link)

    def _hand_out(self) -> list[Outcome]:
        if self._outcomes:
            outcomes, self._outcomes = self._outcomes, []
            return outcomes
        if self._link is None:
            raise self._unusable()
        return []

    def _mend_fast(self, link: AmqpConnection) -> bool:
        channel = self._fast
        if channel is None or (cause := channel.closed_with) is None:
            return False
        left = channel.drain()
        if len(left) == 1:
            self._refuse(left[0], cause)
        else:
            self._waiting.extend(left)
        channel.confirm_close()
        self._fast = PublishChannel(link, self._answer)
        return True

    def _mend_careful(self) -> bool:
        channel = self._careful
        if channel is None or (cause := channel.closed_with) is None:
            return False
        for culprit in channel.drain():
            self._refuse(culprit, cause)
        channel.confirm_close()
        self._careful = None  # opened again when it is needed
        return True

    def _refuse(self, envelope: Envelope, cause: Exception) -> None:
        refusal = classify(cause)
        if refusal.error in _ABOUT_THE_EXCHANGE:
            if len(self._refused_exchanges) >= MAX_REMEMBERED:
                self._refused_exchanges.clear()
            self._refused_exchanges.add(envelope.exchange)
        self._answer(envelope, refusal)

    def _answer(self, envelope: Envelope, refusal: Failure | None) -> None:
        message = envelope.message
        self._outcomes.append(Outcome(message, refusal))
        if refusal is None:
            if self._refused_exchanges:
                self._refused_exchanges.discard(envelope.exchange)
        elif message.declarations and refusal.error in _ABOUT_A_MISSING_QUEUE:
            self._declarer.forget(message.declarations)
        if self._suspects:
            self._suspects.discard(message.id)
            if monotonic() > self._suspects_until:
                self._suspects.clear()  # those that are left went another way

    def _check_lateness(self, link: AmqpConnection) -> None:
        """A message is late when the broker could have answered it and did not, or when its bytes do not move."""
        channels = [channel for channel in (self._fast, self._careful) if channel is not None]
        blocked = link.blocked is not None
        held_up = blocked or link.wants_write
        if self._was_held_up and not held_up:
            for channel in channels:
                channel.restart_clock()
        self._was_held_up = held_up
        limit = self._send_timeout_seconds
        if not blocked and link.stuck_seconds() > limit:
            raise outage("Timeout", f"the broker has read nothing for {limit:g} s")
        if not held_up and any(channel.oldest_seconds() > limit for channel in channels):
            raise outage("Timeout", f"no confirmation within {limit:g} s")

    def _lose(self, error: Exception, never_sent: Sequence[Message] = ()) -> BrokerOutage:
        """Give the connection up. What has no answer is unconfirmed, unless a single message is the evident cause."""
        error = self._last_words(error)
        self._loss = error if isinstance(error, BrokerOutage) else outage(error)
        on_the_wire = [*(self._fast.drain() if self._fast else ()), *(self._careful.drain() if self._careful else ())]
        if isinstance(error, AMQPError) and classify(error).error == "ConnectionClosed":
            if len(on_the_wire) == 1 and on_the_wire[0].message.id in self._suspects:
                self._answer(on_the_wire.pop(), failure("BrokerCrashed", str(error)))
            self._suspects |= {envelope.message.id for envelope in on_the_wire}
            self._suspects_until = monotonic() + SUSPICION_SECONDS
        if self._link is not None:
            self._link.abandon()
        self._clients.rotate(-1)
        self._let_go(on_the_wire)
        self._unconfirmed.extend(never_sent)
        return self._loss

    def _last_words(self, error: Exception) -> Exception:
        """After a write that failed: confirms and the broker's reason may have arrived before."""
        if self._link is not None and isinstance(error, OSError):
            try:
                self._link.read()
            except Exception as reason:
                return reason if isinstance(reason, AMQPError) else error
        return error

    def _let_go(self, on_the_wire: Sequence[Envelope] = ()) -> None:
        """Forget the connection and all that is bound to it."""
        channels = [channel for channel in (self._fast, self._careful) if channel is not None]
        left = [*on_the_wire, *(envelope for channel in channels for envelope in channel.drain()), *self._waiting]
        self._unconfirmed.extend(envelope.message for envelope in sorted(left))
        self._waiting.clear()
        self._link = self._fast = self._careful = None
        self._declarer.disconnected()
        self._refused_exchanges.clear()

    def _unusable(self) -> BrokerOutage:
        if self.blocked is not None:
            return outage("Blocked", f"the broker takes no messages: {self.blocked}")
        return self._loss or outage("NotConnected", "there is no connection to the broker")
