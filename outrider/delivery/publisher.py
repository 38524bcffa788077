"""
Publisher: the interface of the relay and the scheduler to a broker.

Each message given to `publish` comes back exactly once: as an Outcome from `collect`; from `take_unconfirmed` after a
BrokerOutage or `close`, when it is not known whether it arrived; or from `withdraw`, when it was not sent. A publisher
retries nothing and drops nothing.

`publish` and `collect` never wait for a round trip to the broker. What needs one (declaring a row's queues, reopening a
channel that the broker closed, and every send of a transport without a non-blocking send, such as Redis) is put off and
done by `do_blocking_work`. A caller that may block calls both in turn:

    publisher.connect()
    publisher.publish(messages, now)
    while publisher.in_flight:
        if publisher.has_blocking_work:
            publisher.do_blocking_work()
        outcomes += publisher.collect(timeout_seconds=1)

A caller that must not block gives the publisher to another thread while `has_blocking_work`.

`open_publisher` chooses the implementation by the URL: pipelined publisher confirms for AMQP, kombu's transport for
Redis and Valkey.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from outrider.errors import BrokerOutage
from outrider.failures import Failure, outage
from outrider.settings.tls import TlsOptions
from outrider.storage.message import Message


class Outcome(NamedTuple):
    """The result of publishing one message."""

    message: Message
    failure: Failure | None
    """None: the broker confirmed the message."""


class Publisher(ABC):
    """Publishes messages and reports the outcome of each. Not thread-safe: one thread at a time may use it."""

    def __init__(self, clients: Sequence[Any]) -> None:
        """`clients`: one kombu Connection for each host."""
        self._clients = deque(clients)
        self._loss: BrokerOutage | None = None
        self._outcomes: list[Outcome] = []
        self._unconfirmed: list[Message] = []

    @abstractmethod
    def connect(self) -> None:
        """Open the connection, unless it is open. Blocks. Raises BrokerOutage, at the latest after connect_timeout."""

    @property
    @abstractmethod
    def connected(self) -> bool: ...

    @abstractmethod
    def publish(self, messages: Sequence[Message], now: int) -> None:
        """
        Start sending; `now` is the server time. Does not block.

        A row that cannot be sent becomes an Outcome like any other. Afterwards check `has_outcomes` and
        `has_blocking_work`. Raises BrokerOutage

        - when the connection is lost or there was none: everything without an outcome, these messages included, is then
          in `take_unconfirmed`;
        - while `blocked`: nothing was sent, these messages are in `take_unconfirmed`, and the connection is kept with
          what is in flight on it.
        """

    @abstractmethod
    def collect(self, timeout_seconds: float) -> list[Outcome]:
        """
        Return the outcomes that have arrived. Waits for the first one up to the timeout, unless nothing is in flight or
        there is blocking work to do.

        Raises BrokerOutage when the connection is lost, after the outcomes that arrived before were returned. A message
        without a confirm after send_timeout counts as a lost connection, except while the broker is `blocked`.
        """

    @property
    def has_outcomes(self) -> bool:
        """Outcomes are ready, without anything to read at `fileno`: `collect(0)` returns them."""
        return bool(self._outcomes)

    @property
    @abstractmethod
    def has_blocking_work(self) -> bool:
        """Something waits for `do_blocking_work`. Always False without a connection and while `blocked`."""

    @abstractmethod
    def do_blocking_work(self) -> None:
        """
        Do a part of the blocking work. It may wait for the broker, for as long as send_timeout per round trip.

        Call `collect` afterwards. Raises BrokerOutage when the connection is lost, as `publish` does.
        """

    @property
    def isolating(self) -> bool:
        """
        Messages wait to be sent one at a time, because one of several made the broker close the channel.

        `collect` sends the next one when the one before has its outcome, so call it without delay.
        """
        return False

    def take_unconfirmed(self) -> list[Message]:
        """After a BrokerOutage or `close`: the messages without an outcome, in the order they were published."""
        unconfirmed, self._unconfirmed = self._unconfirmed, []
        return unconfirmed

    @abstractmethod
    def withdraw(self) -> list[Message]:
        """Take back the messages that were not sent yet."""

    @property
    @abstractmethod
    def in_flight(self) -> int:
        """Messages that have not come back yet, including those in `take_unconfirmed`."""

    def fileno(self) -> int | None:
        """
        For select(): when it is readable, or writable while `wants_write`, call `collect(0)`.

        None without a connection, and for a transport that sends in `do_blocking_work`.
        """
        return None

    @property
    def wants_write(self) -> bool:
        """The socket did not take everything yet. Messages that are published now are buffered in memory."""
        return False

    @abstractmethod
    def heartbeat(self) -> None:
        """Call about once a second, and `collect(0)` after it. Raises BrokerOutage when the broker is silent."""

    @property
    def blocked(self) -> str | None:
        """Why the broker takes no messages at present (it is low on memory or disk); None while it takes them."""
        return None

    @abstractmethod
    def close(self) -> None:
        """Never raises, and takes about a second at most. What was in flight is then in `take_unconfirmed`."""

    def _take_outcomes(self) -> list[Outcome]:
        if not self._outcomes and not self.connected:
            raise self._outage_reason()
        outcomes, self._outcomes = self._outcomes, []
        return outcomes

    def _outage_reason(self) -> BrokerOutage:
        if self.blocked is not None:
            return outage("Blocked", f"the broker takes no messages: {self.blocked}")
        return self._loss or outage("NotConnected", "there is no connection to the broker")


def open_publisher(
    broker_url: str,
    *,
    send_timeout_seconds: float,
    connect_timeout_seconds: float = 5,
    heartbeat_seconds: int = 10,
    tls: TlsOptions | None = None,
    create_exchanges: bool = False,
) -> Publisher:
    """
    A publisher for this URL, not connected yet. Raises SettingsError for an unusable URL.

    `create_exchanges`: create the topic exchange of an event if it does not exist (AMQP only).
    `amqp://a;amqp://b` names several hosts of one broker. Each `connect` tries the next one.
    """
    from outrider.delivery.amqp_publisher import AmqpPublisher
    from outrider.delivery.broker_url import AMQP_TRANSPORTS, kombu_clients, transport_of
    from outrider.delivery.kombu_publisher import KombuPublisher

    clients = kombu_clients(
        broker_url,
        send_timeout_seconds=send_timeout_seconds,
        connect_timeout_seconds=connect_timeout_seconds,
        heartbeat_seconds=heartbeat_seconds,
        tls=tls or TlsOptions(),
    )
    if transport_of(broker_url) in AMQP_TRANSPORTS:
        return AmqpPublisher(clients, send_timeout_seconds=send_timeout_seconds, create_exchanges=create_exchanges)
    return KombuPublisher(clients)
