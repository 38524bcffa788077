"""
Topology: the queues and exchanges that consumers need, as a description. Pure: consumer/declare.py talks to the broker.

    events --order.*--> billing.on_order                     the consumer's queue
    outrider.delay.10s --> outrider.delay.10s --(10 s)-->    one queue per delay, shared by all consumers
        outrider.return --billing.on_order--> billing.on_order
        outrider.return --nobody--> outrider.unreturned      a queue that was deleted meanwhile: kept for people
    outrider.dead --billing.on_order--> billing.on_order.dlq

A message waits in the broker: it is published to the exchange of its delay with its queue's name as the routing key,
which dead-lettering keeps, so that it comes back to its own queue and no other. All queues are quorum queues, and
dead-lettering is at least once: a message leaves a delay when its queue has it. A queue's own dead letters (a message
that kills its workers, `x-delivery-limit`) go where ours go. An `x-overflow` without a length does nothing; the broker
wants it said for dead-lettering at least once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from outrider.consumer.definition import AnyConsumer
from outrider.consumer.durations import Duration

DEAD_EXCHANGE: Final = "outrider.dead"
RETURN_EXCHANGE: Final = "outrider.return"
UNRETURNED: Final = "outrider.unreturned"
DELAY_PREFIX: Final = "outrider.delay."
DEFAULT_EXCHANGE: Final = "amq.topic"
"""Where consumers expect events unless told otherwise: every RabbitMQ has it."""

DELIVERY_LIMIT: Final = 20
"""A message that took so many workers with it is buried by the broker. RabbitMQ 4's own default."""
NO_DELIVERY_LIMIT: Final = 1_000_000_000
"""Looking at a dead letter counts as a delivery; a limit would drop it one day."""


class ExchangeSpec(NamedTuple):
    name: str
    type: str
    arguments: Mapping[str, Any] = {}
    shared: bool = False
    """It belongs to others: taken as it is, and made only where it is missing."""


class QueueSpec(NamedTuple):
    name: str
    arguments: Mapping[str, Any] = {}


class BindingSpec(NamedTuple):
    exchange: str
    queue: str
    routing_key: str


class Topology(NamedTuple):
    exchanges: tuple[ExchangeSpec, ...]
    queues: tuple[QueueSpec, ...]
    bindings: tuple[BindingSpec, ...]
    written: tuple[str, ...]
    """The exchanges that a worker publishes to."""


def plan_topology(consumers: Iterable[AnyConsumer], events_exchange: str = DEFAULT_EXCHANGE) -> Topology:
    """Everything that these consumers need; `events_exchange` is for those that name none."""
    exchanges = {
        DEAD_EXCHANGE: ExchangeSpec(DEAD_EXCHANGE, "direct"),
        UNRETURNED: ExchangeSpec(UNRETURNED, "fanout"),
        RETURN_EXCHANGE: ExchangeSpec(RETURN_EXCHANGE, "direct", {"alternate-exchange": UNRETURNED}),
    }
    queues = {UNRETURNED: QueueSpec(UNRETURNED, {**QUORUM, "x-delivery-limit": NO_DELIVERY_LIMIT})}
    bindings = {BindingSpec(UNRETURNED, UNRETURNED, ""): None}
    delays: dict[str, Duration] = {}
    for consumer in consumers:
        source = consumer.exchange or events_exchange
        if consumer.routing_keys:
            exchanges[source] = ExchangeSpec(source, "topic", shared=True)
        for queue in (_main_queue(consumer.queue), _dead_letter_queue(consumer.queue)):
            queues[queue.name] = queue
        bindings |= dict.fromkeys(BindingSpec(source, consumer.queue, key) for key in consumer.routing_keys)
        bindings[BindingSpec(RETURN_EXCHANGE, consumer.queue, consumer.queue)] = None
        bindings[BindingSpec(DEAD_EXCHANGE, dead_letter_queue(consumer.queue), consumer.queue)] = None
        delays |= {delay.text: delay for delay in consumer.retry_delays}
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


QUORUM: Final[Mapping[str, Any]] = {"x-queue-type": "quorum"}
_AT_LEAST_ONCE: Final[Mapping[str, Any]] = {
    **QUORUM,
    "x-dead-letter-strategy": "at-least-once",
    "x-overflow": "reject-publish",
}


def _main_queue(name: str) -> QueueSpec:
    dead = {"x-dead-letter-exchange": DEAD_EXCHANGE, "x-dead-letter-routing-key": name}
    return QueueSpec(name, {**_AT_LEAST_ONCE, **dead, "x-delivery-limit": DELIVERY_LIMIT})


def _dead_letter_queue(name: str) -> QueueSpec:
    return QueueSpec(dead_letter_queue(name), {**QUORUM, "x-delivery-limit": NO_DELIVERY_LIMIT})


def _delay_queue(name: str, delay: Duration) -> QueueSpec:
    wait = {"x-message-ttl": delay.milliseconds, "x-dead-letter-exchange": RETURN_EXCHANGE}
    return QueueSpec(name, {**_AT_LEAST_ONCE, **wait})
