"""
Dead letters of a consumer's queue at the broker: list them, and replay them.

Listing takes messages without acknowledging them; they return to the queue, marked as redelivered, when the connection
closes. Replay publishes a copy to the original queue alone, as a first attempt, and acknowledges the dead letter after
the broker has confirmed the copy. Only the dead letters present at the start are replayed: a message that fails and is
buried again meanwhile stays.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, NamedTuple

from aiormq.abc import AbstractChannel, DeliveredMessage
from aiormq.exceptions import ChannelClosed, DeliveryError

from outrider.consumer.connect import BrokerHosts
from outrider.consumer.delivery import ATTEMPT, DIED_AT, ERROR, REASON, ROUTING_KEY
from outrider.consumer.errors import TopologyError
from outrider.consumer.retry_decision import replayed_message
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
        async with _open_dead_letters(broker, queue) as (_, letters):
            found: list[BrokerDeadLetter] = []
            async for letter, _ in letters:
                if matches(letter):
                    found.append(letter)
                    if len(found) == at_most:
                        break
            return found

    return asyncio.run(find())


def replay_dead_letters(broker: BrokerHosts, queue: str, matches: Matches, at_most: int | None) -> int:
    """Publish the dead letters that match to their queue again, the oldest first. Returns how many."""

    async def replay() -> int:
        async with _open_dead_letters(broker, queue) as (channel, letters):
            count = 0
            async for letter, received in letters:
                if matches(letter):
                    await _replay(channel, queue, received)
                    count += 1
                    if count == at_most:
                        break
            return count

    return asyncio.run(replay())


async def _replay(channel: AbstractChannel, queue: str, received: DeliveredMessage) -> None:
    message = replayed_message(received)
    assert received.delivery_tag is not None
    try:
        # The default exchange routes to this queue alone, regardless of other bindings.
        await channel.basic_publish(message.body, routing_key=queue, properties=message.properties, mandatory=True)
    except DeliveryError:
        raise TopologyError(f"queue {queue} does not exist or accepts no messages: start its worker first") from None
    await channel.basic_ack(received.delivery_tag)


Letters = AsyncIterator[tuple[BrokerDeadLetter, DeliveredMessage]]


@asynccontextmanager
async def _open_dead_letters(broker: BrokerHosts, queue: str) -> AsyncIterator[tuple[AbstractChannel, Letters]]:
    """Yield a channel and the dead letters present now. Messages that are not acknowledged return to their queue."""
    connection = await broker.connect()
    try:
        channel = connection.channel(on_return_raises=True)
        await channel.initialize()
        underlay = await channel.get_underlay_channel()
        yield underlay, _get_all(underlay, dead_letter_queue(queue))
    except ChannelClosed as error:
        text = error.args[-1] if error.args else type(error).__name__
        raise TopologyError(one_line(f"dead letters of {queue}: {text}")) from error
    finally:
        await connection.close()


async def _get_all(channel: AbstractChannel, name: str) -> Letters:
    declared = await channel.queue_declare(name, passive=True)
    for _ in range(declared.message_count or 0):
        received = await channel.basic_get(name)
        if received.delivery_tag is None:  # another client took the rest
            return
        yield _describe(received), received


def _describe(received: DeliveredMessage) -> BrokerDeadLetter:
    properties = received.header.properties
    headers: dict[str, Any] = properties.headers or {}
    broker_death = next(_deaths(headers), {})
    died_at = headers.get(DIED_AT, broker_death.get("time"))
    attempts = headers.get(ATTEMPT, 0)
    return BrokerDeadLetter(
        event_id=properties.message_id or "",
        event_type=properties.message_type or "",
        routing_key=str(headers.get(ROUTING_KEY, received.routing_key)),
        # The broker buried it (delivery limit, expired in the queue): the reason is in x-death.
        reason=str(headers.get(REASON, str(broker_death.get("reason", "")).replace("_", " "))),
        attempts=attempts if isinstance(attempts, int) else 0,
        died_at=died_at if isinstance(died_at, datetime) else None,
        error=str(headers.get(ERROR, "")),
    )


def _deaths(headers: dict[str, Any]) -> Iterator[dict[str, Any]]:
    deaths = headers.get("x-death")
    return (death for death in deaths if isinstance(death, dict)) if isinstance(deaths, list) else iter(())
