"""
KombuPublisher: any other transport of kombu's, such as Redis and Valkey, SQS, or memory for tests.

These brokers answer at once: when `publish` returns, every outcome is ready for `collect`. On Redis (with kombu 5.7) a
whole batch goes out in one pipeline, and each command's own answer decides about its message; elsewhere, and on Redis
with an older kombu, messages go one by one, and a fanout without listeners goes unnoticed.

An unroutable message fails here as it does with AMQP, though kombu's virtual transports would drop it without a word:
a message to a named exchange with no matching binding, to the default exchange without a queue's name, or to a Redis
fanout that nobody listens to. Bindings come from the row's `declarations` or from whoever declared them before; the
types of exchanges are known only to the connection that declared them, so that rows for topic and fanout exchanges need
declarations. On Redis a queue is a list that need not exist: the default exchange always accepts.
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
from outrider.delivery.declarations import Declared, declare
from outrider.delivery.outcome import Outcome
from outrider.errors import BrokerOutage, SettingsError
from outrider.failures import Failure, FailureKind, classify, failure, outage
from outrider.storage.message import Message

PIPELINE_MESSAGES = 500


class KombuPublisher:
    """See Publisher for the contract."""

    def __init__(self, clients: Sequence[Any]) -> None:
        self._clients = deque(clients)
        self._channel: Any = None
        self._loss: BrokerOutage | None = None
        self._declared = Declared()
        self._outcomes: list[Outcome] = []
        self._unconfirmed: list[Message] = []

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
            self._drop()
            raise outage(error, address_of(client), connecting=True) from error
        self._loss = None

    @property
    def connected(self) -> bool:
        return self._channel is not None

    def publish(self, messages: Sequence[Message], now: int) -> None:
        if self._channel is None:
            self._unconfirmed.extend(messages)
            raise self._unusable()
        answered = len(self._outcomes)
        try:
            for start in range(0, len(messages), PIPELINE_MESSAGES):
                self._send(messages[start : start + PIPELINE_MESSAGES], now)
        except BrokerOutage as error:
            self._loss = error
            self._drop()
            known = {outcome.message.id for outcome in self._outcomes[answered:]}
            self._unconfirmed.extend(message for message in messages if message.id not in known)
            raise

    def collect(self, timeout_seconds: float) -> list[Outcome]:  # noqa: ARG002  there is never anything to wait for
        outcomes, self._outcomes = self._outcomes, []
        if not outcomes and self._channel is None:
            raise self._unusable()
        return outcomes

    def take_unconfirmed(self) -> list[Message]:
        unconfirmed, self._unconfirmed = self._unconfirmed, []
        return unconfirmed

    def withdraw(self) -> list[Message]:
        return []  # nothing waits here

    @property
    def in_flight(self) -> int:
        return len(self._unconfirmed)

    def fileno(self) -> int | None:
        return None

    def takes_at_once(self, messages: Sequence[Message]) -> bool:  # noqa: ARG002 - the protocol's signature
        return False  # every publish waits for the network

    def arrived(self) -> list[Outcome]:
        return self.collect(0)

    @property
    def ready(self) -> bool:
        return bool(self._outcomes)

    @property
    def troubled(self) -> bool:
        return False

    @property
    def wants_write(self) -> bool:
        return False

    def heartbeat(self) -> None:
        if self._channel is None:
            raise self._unusable()

    @property
    def blocked(self) -> str | None:
        return None

    def close(self) -> None:
        self._drop()

    def _send(self, messages: Sequence[Message], now: int) -> None:
        ready = []
        for message in messages:
            try:
                self._declare_for(message)
                ready.append((message, to_broker_message(message, now)))
            except Exception as error:
                self._refuse(message, error)
        with _one_look_at_each_table(self._channel):
            if getattr(self._channel, "supports_batch_publish", False):
                self._send_pipelined(ready)
                return
            for message, wire in ready:
                self._send_one(message, wire)

    def _send_pipelined(self, ready: Sequence[tuple[Message, BrokerMessage]]) -> None:
        """kombu routes each message into commands of one pipeline; the commands' answers are then ours to read."""
        batch = None
        commands: list[tuple[Message, BrokerMessage, int]] = []
        try:
            batch = self._channel.create_publish_batch(max_size=2**31)
            for message, wire in ready:
                before = len(batch.pipeline)
                try:
                    if _has_destination(wire):
                        prepared = self._prepare(message, wire)
                        batch.publish(prepared, exchange=wire.exchange, routing_key=wire.routing_key)
                except Exception as error:
                    self._refuse(message, error)
                    continue
                if added := len(batch.pipeline) - before:
                    commands.append((message, wire, added))
                else:
                    self._answer(message, _no_route(wire))
            answers = iter(batch.pipeline.execute(raise_on_error=False))
        except BrokerOutage:
            raise
        except Exception as error:
            raise outage(error) from error
        finally:
            if batch is not None:
                batch.close()
        loss: BrokerOutage | None = None
        for message, wire, count in commands:
            try:
                self._read_answers(message, wire, [next(answers) for _ in range(count)])
            except BrokerOutage as error:
                loss = error  # others of the batch may have been taken all the same
        if loss is not None:
            raise loss

    def _read_answers(self, message: Message, wire: BrokerMessage, answers: list[Any]) -> None:
        errors = [answer for answer in answers if isinstance(answer, Exception)]
        if errors:
            self._refuse(message, errors[0])
        else:
            # LPUSH answers the length of the list, PUBLISH the number of listeners.
            self._answer(message, None if any(answers) else _no_route(wire))

    def _send_one(self, message: Message, wire: BrokerMessage) -> None:
        try:
            if self._is_routable(wire):
                prepared = self._prepare(message, wire)
                self._channel.basic_publish(prepared, exchange=wire.exchange, routing_key=wire.routing_key)
                self._answer(message, None)
            else:
                self._answer(message, _no_route(wire))
        except Exception as error:
            self._refuse(message, error)

    def _prepare(self, message: Message, wire: BrokerMessage) -> Any:
        properties = dict(wire.properties)
        return self._channel.prepare_message(
            message.payload,
            priority=properties.pop("priority", None),
            content_type=properties.pop("content_type"),
            content_encoding=properties.pop("content_encoding"),
            headers=wire.headers,
            properties=properties,
        )

    def _is_routable(self, wire: BrokerMessage) -> bool:
        if not wire.exchange:
            return _has_destination(wire)
        if not isinstance(self._channel, virtual.Channel):
            return True
        channel: Any = self._channel
        try:
            table = channel.get_table(wire.exchange)
        except KeyError:
            return False
        return bool(channel.typeof(wire.exchange).lookup(table, wire.exchange, wire.routing_key, None))

    def _declare_for(self, message: Message) -> None:
        text = message.declarations
        if text and text not in self._declared:
            declare(text, self._channel)
            self._declared.remember(text)

    def _refuse(self, message: Message, error: Exception) -> None:
        """Answer for one message, or raise the BrokerOutage that the exception is."""
        refusal = classify(error)
        known = self._clients[0].connection_errors
        # kombu counts KeyError among Redis's, for reasons of its consumers.
        if refusal.error == "Unexpected" and isinstance(error, known) and not isinstance(error, KeyError):
            raise outage("ConnectionLost", refusal.text) from error
        if refusal.kind is FailureKind.OUTAGE:
            raise outage(error) from error
        self._answer(message, refusal)

    def _answer(self, message: Message, refusal: Failure | None) -> None:
        self._outcomes.append(Outcome(message, refusal))
        if refusal is not None and message.declarations:
            self._declared.forget(message.declarations)

    def _drop(self) -> None:
        client = self._clients[0]
        with suppress(Exception):
            client.release()
        self._channel = None
        self._declared.clear()
        self._clients.rotate(-1)

    def _unusable(self) -> BrokerOutage:
        return self._loss or outage("NotConnected", "there is no connection to the broker")


@contextmanager
def _one_look_at_each_table(channel: Any) -> Iterator[None]:
    """
    Let the channel read the bindings of each exchange once for a batch.

    kombu reads them for every message, on Redis through a client that it makes for the purpose: half a millisecond.
    """
    if hasattr(channel, "get_table"):
        channel.get_table = functools.cache(channel.get_table)
    try:
        yield
    finally:
        vars(channel).pop("get_table", None)


def _has_destination(wire: BrokerMessage) -> bool:
    return bool(wire.exchange or wire.routing_key)


def _no_route(wire: BrokerMessage) -> Failure:
    return failure("NoRoute", f"no queue for exchange {wire.exchange!r} and routing key {wire.routing_key!r}")
