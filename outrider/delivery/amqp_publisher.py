"""
AmqpPublisher: pipelined publisher confirms for RabbitMQ and other AMQP 0-9-1 brokers.

Messages are sent on the main channel, any number in flight. A message is `mandatory`, unless its row says otherwise:
the broker returns an unroutable one instead of dropping it.

Isolation: a message can make the broker close the channel (an unknown exchange, say). The broker then ignores what was
sent after it, and does not name it. The main channel is reopened, and all unanswered messages are sent again on the
isolation channel, one at a time, where only the cause fails. These go to the isolation channel from the start: messages
to an exchange that the broker refused before, and a second message with a message_id that is in flight.

With `create_exchanges`, an exchange that does not exist is created when a message to it was refused, and the message is
sent again. So a message costs no declaration, and a user without permission to declare publishes to what exists.

A message can so be delivered twice: when its channel is closed after the broker took it and before its confirm arrived.

A message can also end the whole connection, with a protocol error or a reset. connection_suspects.py finds it: while
there are suspects, everything goes through the isolation channel, and the one that ends the connection again fails.
Queues are declared while nothing is in flight, so that a declaration that ends the connection harms no message.

Where a message is until it comes back:

    _set_aside            needs blocking work first: its queues are not declared, or the main channel is closed
    main channel          in flight
    _isolation_queue      waits for the isolation channel
    isolation channel     in flight, at most one
    _unconfirmed          the connection was lost or closed before the outcome arrived
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from time import monotonic
from typing import Any

from amqp.exceptions import AMQPError

from outrider.delivery.amqp_channel import PublishChannel
from outrider.delivery.amqp_connection import AmqpConnection
from outrider.delivery.amqp_declarations import AmqpDeclarer
from outrider.delivery.amqp_frames import Envelope, encode_envelope
from outrider.delivery.broker_url import address_of
from outrider.delivery.connection_suspects import ConnectionSuspects
from outrider.delivery.publisher import Outcome, Publisher
from outrider.errors import BrokerOutage
from outrider.failures import Failure, classify, failure, outage, text_of
from outrider.storage.message import Message

FLUSH_BYTES = 4 * 1024 * 1024  # a batch of large messages is flushed in several writes
WAIT_SLICE_SECONDS = 1.0  # how often late messages are looked for while waiting
MAX_REFUSED_EXCHANGES = 10_000

# Refusals that every message to the same exchange gets.
_ABOUT_THE_EXCHANGE = frozenset({"NotFound", "AccessRefused"})
# Losses that no message causes.
_NOT_BY_A_MESSAGE = frozenset({"Timeout", "HeartbeatMissed", "ConnectionForced", "Blocked"})
# Refusals after which the row's queues may have been deleted, although they were declared before.
_ABOUT_A_MISSING_QUEUE = frozenset({"NoRoute", "NotFound"})


class AmqpPublisher(Publisher):
    """See Publisher for the contract."""

    def __init__(self, clients: Sequence[Any], *, send_timeout_seconds: float, create_exchanges: bool = False) -> None:
        super().__init__(clients)
        self._create_exchanges = create_exchanges
        self._send_timeout_seconds = send_timeout_seconds
        self._connection: AmqpConnection | None = None
        self._main_channel: PublishChannel | None = None
        self._isolation_channel: PublishChannel | None = None
        self._isolation_queue: deque[Envelope] = deque()
        self._set_aside: list[Envelope] = []
        self._was_held_up = False
        self._declarer = AmqpDeclarer()
        self._refused_exchanges: set[str] = set()
        self._sent_again: set[int] = set()  # messages whose exchange was created
        self._suspects = ConnectionSuspects()
        self._order = 0

    def connect(self) -> None:
        if self._connection is not None:
            return
        client = self._clients[0]
        connection: AmqpConnection | None = None
        try:
            connection = AmqpConnection(client)
            self._main_channel = PublishChannel(connection, self._add_outcome)
            connection.timeout_seconds = self._send_timeout_seconds
        except (OSError, AMQPError) as error:
            self._clients.rotate(-1)
            if connection is not None:
                connection.abandon()
            raise outage(error, address_of(client), connecting=True) from error
        self._connection = connection
        self._loss = None
        self._was_held_up = False

    @property
    def connected(self) -> bool:
        return self._connection is not None

    def publish(self, messages: Sequence[Message], now: int) -> None:
        connection = self._connection
        if connection is None or connection.blocked is not None:
            self._unconfirmed.extend(messages)
            raise self._outage_reason()
        taken = unflushed_bytes = 0
        try:
            for message in messages:
                self._accept(connection, message, now)
                taken += 1
                unflushed_bytes += len(message.payload)
                if unflushed_bytes > FLUSH_BYTES:
                    self._flush(connection)
                    unflushed_bytes = 0
            self._flush(connection)
        except Exception as error:
            raise self._lose_connection(error, messages[taken:]) from error

    def collect(self, timeout_seconds: float) -> list[Outcome]:
        if (connection := self._connection) is not None:
            try:
                self._read(connection)
                deadline = monotonic() + timeout_seconds
                while self._can_wait_for_outcomes() and (left := deadline - monotonic()) > 0:
                    connection.wait(min(left, WAIT_SLICE_SECONDS))
                    self._read(connection)
            except Exception as error:
                self._lose_connection(error)
        return self._take_outcomes()

    @property
    def has_blocking_work(self) -> bool:
        connection, main, isolation = self._connection, self._main_channel, self._isolation_channel
        if connection is None or main is None or connection.blocked is not None:
            return False
        return (
            bool(self._set_aside)
            or main.closed_with is not None
            or (bool(self._isolation_queue) if isolation is None else isolation.closed_with is not None)
        )

    def do_blocking_work(self) -> None:
        if (connection := self._connection) is None:
            raise self._outage_reason()
        try:
            self._reopen_main_channel(connection)
            self._reopen_isolation_channel(connection)
            self._declare_and_send(connection)
            # py-amqp read ahead while it waited: those frames are in its buffer, and select() does not report them.
            connection.read()
        except Exception as error:
            raise self._lose_connection(error) from error

    @property
    def isolating(self) -> bool:
        return bool(self._isolation_queue)

    def withdraw(self) -> list[Message]:
        withdrawn = sorted([*self._set_aside, *self._isolation_queue])
        self._set_aside.clear()
        self._isolation_queue.clear()
        return [envelope.message for envelope in withdrawn]

    @property
    def in_flight(self) -> int:
        return self._unanswered() + len(self._unconfirmed)

    def fileno(self) -> int | None:
        return self._connection.fileno() if self._connection is not None else None

    @property
    def wants_write(self) -> bool:
        return self._connection is not None and self._connection.wants_write

    def heartbeat(self) -> None:
        if (connection := self._connection) is None:
            raise self._outage_reason()
        try:
            connection.read()  # the broker's heartbeats may have arrived while the caller was busy
            connection.heartbeat()
        except Exception as error:
            raise self._lose_connection(error) from error

    @property
    def blocked(self) -> str | None:
        return self._connection.blocked if self._connection is not None else None

    def close(self) -> None:
        if (connection := self._connection) is not None:
            connection.close()  # confirms that are on the way still arrive
            self._forget_connection()

    # -- sending ------------------------------------------------------------------------------------------------------

    def _accept(self, connection: AmqpConnection, message: Message, now: int) -> None:
        """Encode one message and send it, set it aside, or fail it."""
        self._order += 1
        try:
            envelope = encode_envelope(self._order, message, now, connection.frame_max)
        except Exception as error:
            # Any error is the row's. Treated as an outage, it would stop all other messages.
            self._outcomes.append(Outcome(message, classify(error)))
            return
        declarations = message.declarations
        if not declarations or self._declarer.is_declared(declarations):
            self._send(envelope)
        elif (refusal := self._declarer.known_refusal(declarations)) is not None:
            self._outcomes.append(Outcome(message, refusal))
        else:
            self._set_aside.append(envelope)

    def _send(self, envelope: Envelope) -> None:
        main = self._main_channel
        assert main is not None
        if self._suspects or envelope.exchange in self._refused_exchanges or main.has_in_flight(envelope.message_id):
            self._isolation_queue.append(envelope)
        elif main.closed_with is not None:
            self._set_aside.append(envelope)
        else:
            main.send(envelope)

    def _flush(self, connection: AmqpConnection) -> None:
        if self._main_channel is not None:
            self._main_channel.mark_sent()
        connection.flush()

    def _send_next_isolated(self, connection: AmqpConnection) -> None:
        channel = self._isolation_channel
        if not self._isolation_queue or channel is None or len(channel) or connection.blocked is not None:
            return
        if channel.closed_with is None:
            channel.send(self._isolation_queue.popleft())
            channel.mark_sent()
            connection.flush()

    # -- reading ------------------------------------------------------------------------------------------------------

    def _read(self, connection: AmqpConnection) -> None:
        connection.flush()
        connection.read()
        self._check_send_timeout(connection)
        self._send_next_isolated(connection)

    def _unanswered(self) -> int:
        channels = len(self._main_channel or ()) + len(self._isolation_channel or ())
        return channels + len(self._isolation_queue) + len(self._set_aside)

    def _can_wait_for_outcomes(self) -> bool:
        return not self._outcomes and not self.has_blocking_work and self._unanswered() > 0

    def _check_send_timeout(self, connection: AmqpConnection) -> None:
        """Raise if the broker could have confirmed a message in time and did not, or reads nothing of what is sent."""
        channels = [channel for channel in (self._main_channel, self._isolation_channel) if channel is not None]
        blocked = connection.blocked is not None
        held_up = blocked or connection.wants_write
        if self._was_held_up and not held_up:
            for channel in channels:
                channel.restart_send_timeout()
        self._was_held_up = held_up
        limit = self._send_timeout_seconds
        if not blocked and connection.stuck_seconds() > limit:
            raise outage("Timeout", f"the broker has read nothing for {limit:g} s")
        if not held_up and any(channel.oldest_seconds() > limit for channel in channels):
            raise outage("Timeout", f"no confirmation within {limit:g} s")

    def _add_outcome(self, envelope: Envelope, refusal: Failure | None) -> None:
        message = envelope.message
        self._outcomes.append(Outcome(message, refusal))
        if refusal is None:
            if self._refused_exchanges:
                self._refused_exchanges.discard(envelope.exchange)
        elif message.declarations and refusal.error in _ABOUT_A_MISSING_QUEUE:
            self._declarer.forget(message.declarations)
        self._suspects.answered(message.id, confirmed=refusal is None)

    # -- blocking work ------------------------------------------------------------------------------------------------

    def _reopen_main_channel(self, connection: AmqpConnection) -> None:
        channel = self._main_channel
        if channel is None or (cause := channel.closed_with) is None:
            return
        unanswered = channel.take_unanswered()
        if len(unanswered) == 1:
            self._fail_unless_created(connection, unanswered[0], cause)
        else:
            self._isolation_queue.extend(unanswered)
        channel.confirm_close()
        self._main_channel = PublishChannel(connection, self._add_outcome)

    def _reopen_isolation_channel(self, connection: AmqpConnection) -> None:
        channel = self._isolation_channel
        if channel is not None and (cause := channel.closed_with) is not None:
            for envelope in channel.take_unanswered():  # at most one
                self._fail_unless_created(connection, envelope, cause)
            channel.confirm_close()
            channel = self._isolation_channel = None
        if channel is None and self._isolation_queue:
            self._isolation_channel = PublishChannel(connection, self._add_outcome)

    def _declare_and_send(self, connection: AmqpConnection) -> None:
        if not self._set_aside:
            return
        if not self._wait_until_nothing_is_in_flight(connection):
            return
        texts = {envelope.message.declarations for envelope in self._set_aside}
        refusals = self._declarer.declare(connection, [text for text in texts if text])
        set_aside, self._set_aside = self._set_aside, []
        for envelope in set_aside:
            declarations = envelope.message.declarations
            if declarations and declarations in refusals:
                self._add_outcome(envelope, refusals[declarations])
            else:
                self._send(envelope)
        self._flush(connection)

    def _wait_until_nothing_is_in_flight(self, connection: AmqpConnection) -> bool:
        """False if a channel was closed, or the broker blocks: then the blocking work is done later."""
        channels = [channel for channel in (self._main_channel, self._isolation_channel) if channel is not None]
        while any(len(channel) for channel in channels):
            connection.wait(WAIT_SLICE_SECONDS)
            connection.flush()
            connection.read()
            if connection.blocked is not None or any(channel.closed_with is not None for channel in channels):
                return False
            self._check_send_timeout(connection)
        return True

    def _fail_unless_created(self, connection: AmqpConnection, envelope: Envelope, cause: Exception) -> None:
        """Fail the message, or create the exchange that it needs and send it again."""
        refusal, message = classify(cause), envelope.message
        # A message with properties or declarations of its own is Celery's, which declares its exchanges its own way.
        is_event = message.properties == "{}" and not message.declarations
        if self._create_exchanges and is_event and refusal.error == "NotFound":
            refused: Failure | None
            if message.id in self._sent_again:
                # RabbitMQ removes line breaks from the name that it creates, and not from that of a message.
                refused = failure("NotFound", "it is missing after it was created")
            else:
                refused = self._declarer.create_exchange(connection, envelope.exchange)
            if refused is None:
                if len(self._sent_again) >= MAX_REFUSED_EXCHANGES:
                    self._sent_again.clear()
                self._sent_again.add(message.id)
                self._isolation_queue.appendleft(envelope)
                return
            self._sent_again.discard(message.id)
            refusal = failure("NotFound", f"{cause}; and it cannot be created: {refused.text}")
        self._fail(envelope, refusal)

    def _fail(self, envelope: Envelope, refusal: Failure) -> None:
        if refusal.error in _ABOUT_THE_EXCHANGE:
            if len(self._refused_exchanges) >= MAX_REFUSED_EXCHANGES:
                self._refused_exchanges.clear()
            self._refused_exchanges.add(envelope.exchange)
        self._add_outcome(envelope, refusal)

    # -- the end of a connection --------------------------------------------------------------------------------------

    def _lose_connection(self, error: Exception, never_sent: Sequence[Message] = ()) -> BrokerOutage:
        """Drop the connection; returns the outage. All messages without an outcome become unconfirmed."""
        error = self._read_close_reason(error)
        self._loss = error if isinstance(error, BrokerOutage) else outage(error)
        in_flight = self._take_unanswered()
        if (reason := classify(error).error) not in _NOT_BY_A_MESSAGE:
            blamed = self._suspects.connection_lost(
                [envelope.message.id for envelope in in_flight],
                protocol_error=isinstance(error, AMQPError) and reason == "ConnectionClosed",
            )
            if blamed is not None:
                self._add_outcome(in_flight.pop(), failure("BrokerCrashed", text_of(error)))
        if self._connection is not None:
            self._connection.abandon()
        self._clients.rotate(-1)
        self._forget_connection(in_flight)
        self._unconfirmed.extend(never_sent)
        return self._loss

    def _read_close_reason(self, error: Exception) -> Exception:
        """After a failed write: confirms, and the broker's reason for closing, may have arrived before."""
        if self._connection is not None and isinstance(error, OSError):
            try:
                self._connection.read()
            except Exception as reason:
                return reason if isinstance(reason, AMQPError) else error
        return error

    def _take_unanswered(self) -> list[Envelope]:
        channels = [channel for channel in (self._main_channel, self._isolation_channel) if channel is not None]
        return [envelope for channel in channels for envelope in channel.take_unanswered()]

    def _forget_connection(self, in_flight: Sequence[Envelope] = ()) -> None:
        """Drop the connection's state. Messages without an outcome become unconfirmed, in the order of publishing."""
        left = [*in_flight, *self._take_unanswered(), *self._set_aside, *self._isolation_queue]
        self._unconfirmed.extend(envelope.message for envelope in sorted(left))
        self._set_aside.clear()
        self._isolation_queue.clear()
        self._connection = self._main_channel = self._isolation_channel = None
        self._declarer.disconnected()
        self._refused_exchanges.clear()
