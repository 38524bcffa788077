"""
Dead letters of a consumer's queue at the broker: list them, and replay them.

Listing takes messages without acknowledging them; they return to the queue, marked as redelivered, when the connection
closes. Replay publishes a copy to the original queue alone, as a first attempt, and acknowledges the dead letter after
the broker has confirmed the copy. Only the dead letters present at the start are replayed: a message that fails and is
buried again meanwhile stays.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, NamedTuple

from aiormq.abc import AbstractChannel, DeliveredMessage
from aiormq.exceptions import ChannelClosed, DeliveryError

from outrider.consumer.connect import BrokerHosts
from outrider.consumer.declare import reply_of
from outrider.consumer.delivery import ATTEMPT, DIED_AT, ERROR, REASON, ROUTING_KEY, route_before_death
from outrider.consumer.errors import TopologyError
from outrider.consumer.retry_decision import replayed_properties
from outrider.consumer.topology import dead_letter_queue
from outrider.failures import one_line

Matches = Callable[["BrokerDeadLetter"], bool]


class BrokerDeadLetter(NamedTuple):
    """A dead letter without its body."""

    event_id: str
    event_type: str
    routing_key: str
    reason: str
    attempts: int
    died_at: datetime | None
    error: str


def find_dead_letters(broker: BrokerHosts, queue: str, matches: Matches, at_most: int) -> list[BrokerDeadLetter]:
    """The oldest dead letters that match, `at_most` of them."""

    async def find() -> list[BrokerDeadLetter]:
        async with _open_channel(broker, queue) as channel:
            return [letter async for letter, _ in _matching(channel, queue, matches, at_most)]

    return asyncio.run(find())


def replay_dead_letters(broker: BrokerHosts, queue: str, matches: Matches, at_most: int | None) -> int:
    """Publish the dead letters that match to their queue again, the oldest first. Returns how many."""

    async def replay() -> int:
        count = 0
        async with _open_channel(broker, queue) as channel:
            async for _, received in _matching(channel, queue, matches, at_most):
                await _replay(channel, queue, received)
                count += 1
        return count

    return asyncio.run(replay())


async def _replay(channel: AbstractChannel, queue: str, received: DeliveredMessage) -> None:
    assert received.delivery_tag is not None
    try:
        # The default exchange routes to this queue alone, regardless of other bindings.
        await channel.basic_publish(
            received.body, routing_key=queue, properties=replayed_properties(received, queue), mandatory=True
        )
    except DeliveryError:
        raise TopologyError(f"queue {queue} does not exist or accepts no messages: start its worker first") from None
    await channel.basic_ack(received.delivery_tag)


@asynccontextmanager
async def _open_channel(broker: BrokerHosts, queue: str) -> AsyncIterator[AbstractChannel]:
    """A channel for the dead letters of a queue. At the end, messages that are not acknowledged return to the queue."""
    connection = await broker.connect()
    try:
        channel = connection.channel(on_return_raises=True)
        await channel.initialize()
        yield await channel.get_underlay_channel()
    except ChannelClosed as error:
        raise TopologyError(one_line(f"dead letters of {queue}: {reply_of(error)}")) from error
    finally:
        await connection.close()


async def _matching(
    channel: AbstractChannel, queue: str, matches: Matches, at_most: int | None
) -> AsyncIterator[tuple[BrokerDeadLetter, DeliveredMessage]]:
    """The dead letters present now that match, the oldest first."""
    name = dead_letter_queue(queue)
    try:
        declared = await channel.queue_declare(name, passive=True)
    except ValueError:  # pamqp does not send every name that RabbitMQ accepts
        raise TopologyError(f"{queue!r} cannot be used as the name of a queue") from None
    found = 0
    for _ in range(declared.message_count or 0):
        received = await channel.basic_get(name)
        if received.delivery_tag is None:  # another client took the rest
            return
        letter = _describe(received, queue)
        if matches(letter):
            yield letter, received
            found += 1
            if found == at_most:
                return


def _describe(received: DeliveredMessage, queue: str) -> BrokerDeadLetter:
    properties = received.header.properties
    headers: dict[str, Any] = properties.headers or {}
    deaths = headers.get("x-death")
    broker_death = deaths[0] if isinstance(deaths, list) and deaths and isinstance(deaths[0], dict) else {}
    route = route_before_death(headers, queue)
    died_at = headers.get(DIED_AT, broker_death.get("time"))
    attempts = headers.get(ATTEMPT, 0)
    return BrokerDeadLetter(
        event_id=properties.message_id or "",
        event_type=properties.message_type or "",
        routing_key=str(headers.get(ROUTING_KEY, route[1] if route else received.routing_key)),
        # The broker buried it (delivery limit, expired in the queue): the reason is in x-death.
        reason=str(headers.get(REASON, str(broker_death.get("reason", "")).replace("_", " "))),
        attempts=attempts if isinstance(attempts, int) else 0,
        died_at=died_at if isinstance(died_at, datetime) else None,
        error=str(headers.get(ERROR, "")),
    )
