"""
KombuPublisher: Redis and Valkey, through kombu's transport.

The transport has no non-blocking send: `publish` only stores the messages, and `do_blocking_work` sends up to
PIPELINE_MESSAGES of them and reads the answers. With kombu 5.7 they go out in one pipeline, and each command's own
answer decides about its message. With an older kombu they go one by one, and a fanout without listeners is not noticed.

An unroutable message fails here as it does with AMQP, although kombu's virtual transports would drop it: a message to a
named exchange without a matching binding, to the default exchange without a queue's name, or to a Redis fanout without
listeners. A message that is not mandatory is confirmed instead. Bindings come from the row's `declarations`, or were
declared by another client before. Only the connection that declared an exchange knows its type, so rows for topic and
fanout exchanges need declarations. A Redis queue is a list that need not exist: the default exchange always accepts.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from kombu.transport import virtual

from outrider.delivery.broker_message import BrokerMessage, to_broker_message
from outrider.delivery.broker_url import address_of
from outrider.delivery.declarations import declare
from outrider.delivery.publisher import Outcome, Publisher
from outrider.errors import BrokerOutage, SettingsError
from outrider.failures import Failure, FailureKind, classify, no_route, outage
from outrider.storage.message import Message

PIPELINE_MESSAGES = 500


class KombuPublisher(Publisher):
    """See Publisher for the contract."""

    def __init__(self, clients: Sequence[Any]) -> None:
        super().__init__(clients)
        self._channel: Any = None
        self._declared: set[str] = set()
        self._unsent: deque[tuple[Message, int]] = deque()  # with the server time of `publish`

    def connect(self) -> None:
        if self._channel is not None:
            return
        client = self._clients[0]
        try:
            client.ensure_connection(max_retries=0, reraise_as_library_errors=False)
            self._channel = client.channel()
        except ImportError as error:
            raise SettingsError(f"broker_url needs a library that is not installed: {error}") from None
        except Exception as error:
            self._disconnect()
            raise outage(error, address_of(client), connecting=True) from error
        self._loss = None

    @property
    def connected(self) -> bool:
        return self._channel is not None

    def publish(self, messages: Sequence[Message], now: int) -> None:
        if self._channel is None:
            self._unconfirmed.extend(messages)
            raise self._outage_reason()
        self._unsent.extend((message, now) for message in messages)

    def collect(self, timeout_seconds: float) -> list[Outcome]:  # noqa: ARG002  outcomes do not arrive, see above
        return self._take_outcomes()

    @property
    def has_blocking_work(self) -> bool:
        return bool(self._unsent)

    def do_blocking_work(self) -> None:
        if self._channel is None:
            raise self._outage_reason()
        batch = [self._unsent.popleft() for _ in range(min(len(self._unsent), PIPELINE_MESSAGES))]
        answered = len(self._outcomes)
        try:
            self._send(batch)
        except BrokerOutage as error:
            self._loss = error
            known = {outcome.message.id for outcome in self._outcomes[answered:]}
            self._unconfirmed.extend(message for message, _ in batch if message.id not in known)
            self._disconnect()
            raise

    def withdraw(self) -> list[Message]:
        withdrawn = [message for message, _ in self._unsent]
        self._unsent.clear()
        return withdrawn

    @property
    def in_flight(self) -> int:
        return len(self._unsent) + len(self._unconfirmed)

    def heartbeat(self) -> None:
        if self._channel is None:
            raise self._outage_reason()

    def close(self) -> None:
        self._disconnect()

    def _send(self, batch: Sequence[tuple[Message, int]]) -> None:
        ready = []
        for message, now in batch:
            try:
                if message.declarations:
                    declare(message.declarations, self._channel, self._declared)
                ready.append((message, to_broker_message(message, now)))
            except Exception as error:
                self._fail(message, error)
        with _cached_bindings(self._channel):
            if getattr(self._channel, "supports_batch_publish", False):
                self._send_pipelined(ready)
                return
            for message, broker_message in ready:
                self._send_one(message, broker_message)

    def _send_pipelined(self, ready: Sequence[tuple[Message, BrokerMessage]]) -> None:
        """kombu adds each message to one pipeline as commands. The answers to its commands decide about a message."""
        batch = None
        commands: list[tuple[Message, BrokerMessage, int]] = []
        try:
            batch = self._channel.create_publish_batch(max_size=2**31)
            for message, broker_message in ready:
                before = len(batch.pipeline)
                try:
                    if _has_destination(broker_message):
                        prepared = self._prepare(message, broker_message)
                        batch.publish(
                            prepared, exchange=broker_message.exchange, routing_key=broker_message.routing_key
                        )
                except Exception as error:
                    self._fail(message, error)
                    continue
                if added := len(batch.pipeline) - before:
                    commands.append((message, broker_message, added))
                else:
                    self._add_outcome(message, _unrouted(broker_message))
            answers = iter(batch.pipeline.execute(raise_on_error=False))
        except BrokerOutage:
            raise
        except Exception as error:
            raise outage(error) from error
        finally:
            if batch is not None:
                batch.close()
        loss: BrokerOutage | None = None
        for message, broker_message, count in commands:
            try:
                self._read_answers(message, broker_message, [next(answers) for _ in range(count)])
            except BrokerOutage as error:
                loss = error  # the server may have accepted others of the batch
        if loss is not None:
            raise loss

    def _read_answers(self, message: Message, broker_message: BrokerMessage, answers: list[Any]) -> None:
        errors = [answer for answer in answers if isinstance(answer, Exception)]
        if errors:
            self._fail(message, errors[0])
        else:
            # LPUSH answers the length of the list, PUBLISH the number of listeners.
            self._add_outcome(message, None if any(answers) else _unrouted(broker_message))

    def _send_one(self, message: Message, broker_message: BrokerMessage) -> None:
        try:
            if self._is_routable(broker_message):
                prepared = self._prepare(message, broker_message)
                self._channel.basic_publish(
                    prepared, exchange=broker_message.exchange, routing_key=broker_message.routing_key
                )
                self._add_outcome(message, None)
            else:
                self._add_outcome(message, _unrouted(broker_message))
        except Exception as error:
            self._fail(message, error)

    def _prepare(self, message: Message, broker_message: BrokerMessage) -> Any:
        properties = dict(broker_message.properties)
        return self._channel.prepare_message(
            message.payload,
            priority=properties.pop("priority", None),
            content_type=properties.pop("content_type"),
            content_encoding=properties.pop("content_encoding"),
            headers=broker_message.headers,
            properties=properties,
        )

    def _is_routable(self, broker_message: BrokerMessage) -> bool:
        if not broker_message.exchange:
            return _has_destination(broker_message)
        if not isinstance(self._channel, virtual.Channel):
            return True
        channel: Any = self._channel
        try:
            table = channel.get_table(broker_message.exchange)
        except KeyError:
            return False
        return bool(
            channel.typeof(broker_message.exchange).lookup(
                table, broker_message.exchange, broker_message.routing_key, None
            )
        )

    def _fail(self, message: Message, error: Exception) -> None:
        """Add the failure of one message, or raise BrokerOutage if the exception means an outage."""
        refusal = classify(error)
        known = self._clients[0].connection_errors
        # kombu lists KeyError among the connection errors of Redis, for its consumers.
        if refusal.error == "Unexpected" and isinstance(error, known) and not isinstance(error, KeyError):
            raise outage("ConnectionLost", refusal.text) from error
        if refusal.kind is FailureKind.OUTAGE:
            raise outage(error) from error
        self._add_outcome(message, refusal)

    def _add_outcome(self, message: Message, refusal: Failure | None) -> None:
        self._outcomes.append(Outcome(message, refusal))
        if refusal is not None and message.declarations:
            self._declared.discard(message.declarations)  # its queue may have been deleted

    def _disconnect(self) -> None:
        """Release the connection. Messages that were not sent become unconfirmed. The next host is tried next."""
        client = self._clients[0]
        with suppress(Exception):
            client.release()
        self._channel = None
        self._declared.clear()
        self._unconfirmed.extend(self.withdraw())
        self._clients.rotate(-1)


@contextmanager
def _cached_bindings(channel: Any) -> Iterator[None]:
    """
    Let the channel read the bindings of each exchange once for a batch.

    kombu reads them for every message. On Redis it creates a client each time, which takes half a millisecond.
    """
    if hasattr(channel, "get_table"):
        channel.get_table = functools.cache(channel.get_table)
    try:
        yield
    finally:
        vars(channel).pop("get_table", None)


def _has_destination(broker_message: BrokerMessage) -> bool:
    return bool(broker_message.exchange or broker_message.routing_key)


def _unrouted(broker_message: BrokerMessage) -> Failure | None:
    """The outcome of a message that no queue takes: a failure, unless the message may vanish."""
    if not broker_message.mandatory:
        return None
    return no_route(broker_message.exchange, broker_message.routing_key)
