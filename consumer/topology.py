"""
Topology: the queues, exchanges and bindings that consumers need, as values. consumer/declare.py creates them.

    events --order.*--> billing.on_order                     the consumer's queue
    outrider.delay.10s --> outrider.delay.10s --(10 s)-->    one queue per delay, shared by all consumers
        outrider.return --billing.on_order--> billing.on_order
        outrider.return --(no queue)--> outrider.unreturned  the queue was deleted: kept for an operator
    outrider.dead --billing.on_order--> billing.on_order.dlq

A retry waits in the broker. The worker publishes it to the exchange of its delay with the queue's name as routing key.
Dead-lettering keeps the routing key, so the message returns to its own queue and to no other. All queues are quorum
queues with at-least-once dead-lettering: a message leaves the delay queue only after its own queue has it. A message
that exceeds the delivery limit of its queue goes to the same dead-letter queue. `x-overflow` has no effect without a
length limit, but RabbitMQ requires it for at-least-once dead-lettering.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from outrider.consumer.definition import AnyConsumer
from outrider.settings.durations import Duration
from outrider.storage.message import DEFAULT_EXCHANGE

DEAD_EXCHANGE: Final = "outrider.dead"
RETURN_EXCHANGE: Final = "outrider.return"
UNRETURNED: Final = "outrider.unreturned"
DELAY_PREFIX: Final = "outrider.delay."

DELIVERY_LIMIT: Final = 20
"""The broker buries a message after this many deliveries without an acknowledgement. RabbitMQ 4's default."""
NO_DELIVERY_LIMIT: Final = 1_000_000_000
"""Listing dead letters counts as a delivery; with a limit the broker would drop them eventually."""


class ExchangeSpec(NamedTuple):
    name: str
    type: str
    arguments: Mapping[str, Any] = {}
    shared: bool = False
    """Shared with other applications: used as it is, and created only if it is missing."""


class QueueSpec(NamedTuple):
    name: str
    arguments: Mapping[str, Any]


class BindingSpec(NamedTuple):
    exchange: str
    queue: str
    routing_key: str


class Topology(NamedTuple):
    exchanges: tuple[ExchangeSpec, ...]
    queues: tuple[QueueSpec, ...]
    bindings: tuple[BindingSpec, ...]
    published_exchanges: tuple[str, ...]
    """The exchanges that a worker publishes to."""


def plan_topology(consumers: Iterable[AnyConsumer]) -> Topology:
    """The topology of these consumers. What they leave open has its default: give them the worker's values before."""
    exchanges = {
        DEAD_EXCHANGE: ExchangeSpec(DEAD_EXCHANGE, "direct"),
        UNRETURNED: ExchangeSpec(UNRETURNED, "fanout"),
        RETURN_EXCHANGE: ExchangeSpec(RETURN_EXCHANGE, "direct", {"alternate-exchange": UNRETURNED}),
    }
    queues = {UNRETURNED: QueueSpec(UNRETURNED, _KEPT)}
    bindings = {BindingSpec(UNRETURNED, UNRETURNED, ""): None}
    delays: dict[str, Duration] = {}
    for consumer in (each.with_defaults() for each in consumers):
        source = consumer.exchange or DEFAULT_EXCHANGE
        if consumer.routing_keys:
            exchanges[source] = ExchangeSpec(source, "topic", shared=True)
        dead = dead_letter_queue(consumer.queue)
        queues[consumer.queue] = _main_queue(consumer.queue)
        queues[dead] = QueueSpec(dead, _KEPT)
        bindings |= dict.fromkeys(BindingSpec(source, consumer.queue, key) for key in consumer.routing_keys)
        bindings[BindingSpec(RETURN_EXCHANGE, consumer.queue, consumer.queue)] = None
        bindings[BindingSpec(DEAD_EXCHANGE, dead, consumer.queue)] = None
        delays |= {delay.text: delay for delay in consumer.retry_delays or ()}
    for delay in delays.values():
        name = delay_exchange(delay)
        exchanges[name] = ExchangeSpec(name, "fanout")
        queues[name] = _delay_queue(name, delay)
        bindings[BindingSpec(name, name, "")] = None
    return Topology(
        tuple(exchanges.values()),
        tuple(queues.values()),
        tuple(bindings),
        (DEAD_EXCHANGE, *map(delay_exchange, delays.values())),
    )


def delay_exchange(delay: Duration) -> str:
    return DELAY_PREFIX + delay.text


def dead_letter_queue(queue: str) -> str:
    return f"{queue}.dlq"


_KEPT: Final[Mapping[str, Any]] = {"x-queue-type": "quorum", "x-delivery-limit": NO_DELIVERY_LIMIT}
_AT_LEAST_ONCE: Final[Mapping[str, Any]] = {
    "x-queue-type": "quorum",
    "x-dead-letter-strategy": "at-least-once",
    "x-overflow": "reject-publish",
}


def _main_queue(name: str) -> QueueSpec:
    dead = {"x-dead-letter-exchange": DEAD_EXCHANGE, "x-dead-letter-routing-key": name}
    return QueueSpec(name, {**_AT_LEAST_ONCE, **dead, "x-delivery-limit": DELIVERY_LIMIT})


def _delay_queue(name: str, delay: Duration) -> QueueSpec:
    wait = {"x-message-ttl": delay.milliseconds, "x-dead-letter-exchange": RETURN_EXCHANGE}
    return QueueSpec(name, {**_AT_LEAST_ONCE, **wait})
