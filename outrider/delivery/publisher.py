"""
Publisher: what the relay and the scheduler know of a broker.

A message given to `publish` comes back exactly once: as an Outcome from `collect`, or, after a BrokerOutage or `close`,
from `take_unconfirmed` with an unknown fate, or unsent from `withdraw`. Nothing is retried in here, and nothing is ever
dropped.

    publisher.connect()
    publisher.publish(messages, now)
    outcomes = publisher.collect(0)
    while publisher.in_flight:
        outcomes += publisher.collect(1)

`open_publisher` picks the implementation by the URL: pipelined publisher confirms for AMQP, kombu's own transports for
everything else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from outrider.delivery.outcome import Outcome
from outrider.settings.tls import TlsOptions
from outrider.storage.message import Message


class Publisher(Protocol):
    """Sends messages and tells what became of each. Not thread-safe: one thread owns it."""

    def connect(self) -> None:
        """Open the connection, if it is not. Raises BrokerOutage, after the connect timeout at the latest."""

    @property
    def connected(self) -> bool: ...

    def publish(self, messages: Sequence[Message], now: int) -> None:
        """
        Start sending, without waiting for answers; `now` is the database's clock (microseconds, see message.py).

        A row that cannot be sent becomes an Outcome like any other. Call `collect(0)` afterwards: some outcomes are
        ready at once, and `fileno` does not tell of them. Raises BrokerOutage

        - when the connection is lost or was not there: then everything without an outcome, these messages included, is
          in `take_unconfirmed`;
        - while `blocked`: then nothing was sent, these messages are in `take_unconfirmed`, and the connection with
          what is in flight lives on.
        """

    def collect(self, timeout_seconds: float) -> list[Outcome]:
        """
        The outcomes that arrived; waits for the first one, but not when there is none to wait for.

        Raises BrokerOutage on a lost connection, once the outcomes that came before the loss are handed out. A message
        that gets no answer within the send timeout counts as a lost connection, unless the broker is `blocked`.
        """

    def take_unconfirmed(self) -> list[Message]:
        """After an outage or `close`: what has no outcome, in the order it was given."""

    def withdraw(self) -> list[Message]:
        """What waits its turn and was not sent yet; it will not be. For a caller who leaves it to somebody else."""

    @property
    def in_flight(self) -> int:
        """Messages that came back in no way yet; those that wait in `take_unconfirmed` count."""

    def fileno(self) -> int | None:
        """For select(): readable means call `collect(0)`. None: not connected, or a transport that answers at once."""

    # For callers that must never wait. While nothing is troubled: publish what `takes_at_once` allows, call `arrived`
    # when `fileno` is readable (or writable, if `wants_write`), and once a second in any case.

    def takes_at_once(self, messages: Sequence[Message]) -> bool:
        """Whether `publish` of these would wait for nothing, the network included."""

    def arrived(self) -> list[Outcome]:
        """As `collect(0)`, but what takes time is left undone: see `troubled`."""

    @property
    def ready(self) -> bool:
        """Whether `arrived` has outcomes to give of which `fileno` does not tell."""

    @property
    def troubled(self) -> bool:
        """Whether something is to be mended that takes time: call `collect` until it is not."""

    @property
    def wants_write(self) -> bool:
        """Whether something waits for the network to take it. What is published meanwhile piles up in memory."""

    def heartbeat(self) -> None:
        """Call about once a second, and `collect(0)` after it. Raises BrokerOutage when the broker went silent."""

    @property
    def blocked(self) -> str | None:
        """Why the broker takes no messages at present (it is low on memory or disk), while it does not."""

    def close(self) -> None:
        """Never raises, and takes a second at most. What was in flight is then in `take_unconfirmed`."""


def open_publisher(
    broker_url: str,
    *,
    send_timeout_seconds: float,
    connect_timeout_seconds: float = 5,
    heartbeat_seconds: int = 10,
    tls: TlsOptions | None = None,
) -> Publisher:
    """
    A publisher for this URL, not connected yet. Raises SettingsError for a URL that is unusable.

    `amqp://a;amqp://b` names several hosts of one broker, tried in turn.
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
        return AmqpPublisher(clients, send_timeout_seconds=send_timeout_seconds)
    return KombuPublisher(clients)
