"""
Dead letters of a consumer's queue, at the broker: look at them, and send them back.

A dead letter is looked at by taking it and not acknowledging it, so that it is there again when the connection closes,
as redelivered. Replay sends a copy to the queue it died in, and to no other, as a first attempt; the dead letter is
acknowledged when the broker has confirmed the copy. Only what was there at the beginning is replayed: a message that
dies again is left for the next time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, NamedTuple

from aiormq.abc import AbstractChannel, DeliveredMessage
from aiormq.exceptions import ChannelClosed, DeliveryError

from outrider.consumer.connect import Broker
from outrider.consumer.delivery import ATTEMPT, DIED_AT, ERROR, REASON, ROUTING_KEY
from outrider.consumer.errors import TopologyError
from outrider.consumer.retry_decision import replayed
from outrider.consumer.topology import dead_letter_queue
from outrider.failures import one_line

Wanted = Callable[["BrokerDeadLetter"], bool]


class BrokerDeadLetter(NamedTuple):
    """What can be said of one: never its body."""

    event_id: str
    event_type: str
    routing_key: str
    reason: str
    attempts: int
    died_at: datetime | None
    error: str


def find_dead_letters(broker: Broker, queue: str, wanted: Wanted, at_most: int) -> list[BrokerDeadLetter]:
    """The oldest that are wanted."""

    async def find() -> list[BrokerDeadLetter]:
        async with _taken(broker, queue) as (_, letters):
            found: list[BrokerDeadLetter] = []
            async for letter, _ in letters:
                if wanted(letter):
                    found.append(letter)
                    if len(found) == at_most:
                        break
            return found

    return asyncio.run(find())


def replay_dead_letters(broker: Broker, queue: str, wanted: Wanted, at_most: int | None) -> int:
    """Send those that are wanted back to the queue, the oldest first; how many."""

    async def replay() -> int:
        async with _taken(broker, queue) as (channel, letters):
            count = 0
            async for letter, received in letters:
                if wanted(letter):
                    await _send_back(channel, queue, received)
                    count += 1
                    if count == at_most:
                        break
            return count

    return asyncio.run(replay())


async def _send_back(channel: AbstractChannel, queue: str, received: DeliveredMessage) -> None:
    message = replayed(received)
    assert received.delivery_tag is not None
    try:
        # The default exchange leads to this queue or to none, whatever else is bound.
        await channel.basic_publish(message.body, routing_key=queue, properties=message.properties, mandatory=True)
    except DeliveryError:
        raise TopologyError(f"queue {queue} does not exist or takes no messages: start its worker first") from None
    await channel.basic_ack(received.delivery_tag)


Letters = AsyncIterator[tuple[BrokerDeadLetter, DeliveredMessage]]


@asynccontextmanager
async def _taken(broker: Broker, queue: str) -> AsyncIterator[tuple[AbstractChannel, Letters]]:
    """A channel, and the dead letters that are there now, one by one. What is not acknowledged goes back at the end."""
    connection = await broker.connect()
    try:
        channel = connection.channel(on_return_raises=True)
        await channel.initialize()
        underlay = await channel.get_underlay_channel()
        yield underlay, _each(underlay, dead_letter_queue(queue))
    except ChannelClosed as error:
        text = error.args[-1] if error.args else type(error).__name__
        raise TopologyError(one_line(f"dead letters of {queue}: {text}")) from error
    finally:
        await connection.close()


async def _each(channel: AbstractChannel, name: str) -> Letters:
    declared = await channel.queue_declare(name, passive=True)
    for _ in range(declared.message_count or 0):
        received = await channel.basic_get(name)
        if received.delivery_tag is None:  # somebody else took the rest
            return
        yield _read(received), received


def _read(received: DeliveredMessage) -> BrokerDeadLetter:
    properties = received.header.properties
    headers: dict[str, Any] = properties.headers or {}
    by_broker = next(_deaths(headers), {})
    died_at = headers.get(DIED_AT, by_broker.get("time"))
    attempts = headers.get(ATTEMPT, 0)
    return BrokerDeadLetter(
        event_id=properties.message_id or "",
        event_type=properties.message_type or "",
        routing_key=str(headers.get(ROUTING_KEY, received.routing_key)),
        # One that the broker buried (too many deliveries, expired in the queue) has its own words for it.
        reason=str(headers.get(REASON, str(by_broker.get("reason", "")).replace("_", " "))),
        attempts=attempts if isinstance(attempts, int) else 0,
        died_at=died_at if isinstance(died_at, datetime) else None,
        error=str(headers.get(ERROR, "")),
    )


def _deaths(headers: dict[str, Any]) -> Iterator[dict[str, Any]]:
    deaths = headers.get("x-death")
    return (death for death in deaths if isinstance(death, dict)) if isinstance(deaths, list) else iter(())
