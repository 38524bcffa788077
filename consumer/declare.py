"""
Declare the topology at the broker, or only check that it exists.

`declare` creates what is missing and changes nothing that exists. `check` creates nothing, for broker users without the
permission to configure: it checks that every queue and exchange exists and that the user may publish and consume, and
stops at the first problem with a one-line error. Bindings cannot be checked over AMQP.

The permission to publish is checked with a message that the broker must refuse: RabbitMQ checks the permission first
and then `expiration`, which is not a number.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from aio_pika.abc import AbstractConnection
from aiormq.abc import AbstractChannel
from aiormq.exceptions import (
    ChannelAccessRefused,
    ChannelClosed,
    ChannelLockedResource,
    ChannelNotFoundEntity,
    ChannelPreconditionFailed,
)
from pamqp.commands import Basic

from outrider.consumer.errors import TopologyError
from outrider.consumer.topology import ExchangeSpec, Topology
from outrider.failures import one_line

MISSING = (
    "create it with deploy/terraform/consumer, or let the worker create it: start it without --no-declare "
    "(declare=True)"
)
PERMISSIONS = {
    "declare": "configure",
    "create": "write (on the queue) and read (on the exchange)",
    "publish to": "write",
    "consume from": "read",
    "see": "configure, write or read",
}
"""The permission that each step needs."""


async def declare(connection: AbstractConnection, topology: Topology) -> None:
    """Create what is missing. Raises TopologyError that names what the broker refuses."""
    for exchange in topology.exchanges:
        if not (exchange.shared and await _exists(connection, exchange)):
            async with _channel(connection, f"exchange {exchange.name}", "declare") as channel:
                await channel.exchange_declare(
                    exchange.name, exchange_type=exchange.type, durable=True, arguments=dict(exchange.arguments)
                )
    for queue in topology.queues:
        async with _channel(connection, f"queue {queue.name}", "declare") as channel:
            await channel.queue_declare(queue.name, durable=True, arguments=dict(queue.arguments))
    for binding in topology.bindings:
        what = f"binding of queue {binding.queue} to exchange {binding.exchange}"
        async with _channel(connection, what, "create") as channel:
            await channel.queue_bind(binding.queue, binding.exchange, binding.routing_key)


async def check(connection: AbstractConnection, topology: Topology) -> None:
    """Check everything. Raises TopologyError that names the first thing that is missing or not permitted."""
    for exchange in topology.exchanges:
        if not await _exists(connection, exchange):
            raise TopologyError(f"exchange {exchange.name} does not exist: {MISSING}")
    for queue in topology.queues:
        async with _channel(connection, f"queue {queue.name}", "see") as channel:
            await channel.queue_declare(queue.name, passive=True)
    for name in topology.published_exchanges:
        async with _channel(connection, f"exchange {name}", "publish to") as channel:
            with suppress(ChannelPreconditionFailed):  # refused because of `expiration`: the permission is there
                await channel.basic_publish(b"", exchange=name, properties=Basic.Properties(expiration="?"))


async def _exists(connection: AbstractConnection, exchange: ExchangeSpec) -> bool:
    try:
        async with _channel(connection, f"exchange {exchange.name}", "see") as channel:
            await channel.exchange_declare(exchange.name, passive=True)
    except TopologyError as error:
        if isinstance(error.__cause__, ChannelNotFoundEntity):
            return False
        raise
    return True


@asynccontextmanager
async def _channel(connection: AbstractConnection, what: str, verb: str) -> AsyncIterator[AbstractChannel]:
    """A new channel for one step: a refusal closes the channel."""
    channel = connection.channel(on_return_raises=True)
    try:
        await channel.initialize()
        yield await channel.get_underlay_channel()
    except ChannelClosed as error:
        raise TopologyError(explain(error, what, verb)) from error
    finally:
        await channel.close()


def explain(error: ChannelClosed, what: str, verb: str) -> str:
    """Describe the broker's refusal in one line for an operator."""
    match error:
        case ChannelNotFoundEntity():
            return f"{what} does not exist: {MISSING}"
        case ChannelAccessRefused():
            text = f"the broker user may not {verb} {what}: give it the {PERMISSIONS[verb]} permission"
            if verb not in ("declare", "create"):
                return text
            return (
                f"{text}, or create everything with deploy/terraform/consumer and start the worker with --no-declare "
                "(declare=False)"
            )
        case ChannelLockedResource():
            return f"{what} is exclusive to another connection"
        case ChannelPreconditionFailed():
            return one_line(
                f"{what} exists with other arguments: delete it, or start the worker with --no-declare "
                f"(declare=False), which uses it as it is; the broker said: {reply_of(error)}"
            )
        case _:
            return one_line(f"cannot {verb} {what}: {reply_of(error)}")


def reply_of(error: ChannelClosed) -> str:
    return str(error.args[-1]) if error.args else type(error).__name__
