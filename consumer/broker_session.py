"""
BrokerSession: one connection to the broker, from the first look at the topology to the last acknowledgement.

A message is acknowledged when its handler is done, or when the broker has confirmed its copy in a delay or among the
dead letters: never before. A copy that the broker refuses ends the session: the message goes back to its queue, and the
next session looks at the topology again. A connection that is lost leaves running handlers alone; what they did cannot
be acknowledged any more, and the broker delivers it again.

There is no timeout for a confirm: a broker under an alarm keeps us waiting, and a dead one misses its heartbeats.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, cast

from aio_pika.abc import AbstractChannel, AbstractConnection
from aiormq.abc import DeliveredMessage
from aiormq.channel import Channel
from aiormq.exceptions import ChannelClosed

from outrider.consumer.context import report
from outrider.consumer.declare import check, declare, explain
from outrider.consumer.definition import AnyConsumer
from outrider.consumer.delivery import Delivery, read_delivery
from outrider.consumer.errors import NotStarted, TopologyError
from outrider.consumer.handling import Handling
from outrider.consumer.metrics import ConsumerMetrics
from outrider.consumer.retry_decision import DONE, DUPLICATE, Bury, Done, Fate, Retry, after_failure, message_for
from outrider.consumer.topology import DEAD_EXCHANGE, dead_letter_queue, delay_exchange, plan_topology
from outrider.failures import one_line
from outrider.telemetry.logs import get_logger

CANCEL_SECONDS = 5.0

log = get_logger(__name__)


class BrokerSession:
    def __init__(
        self,
        connection: AbstractConnection,
        consumers: Sequence[AnyConsumer],
        *,
        prefetch: int,
        handling: Handling,
        metrics: ConsumerMetrics,
        tasks: set[asyncio.Task[None]],
    ) -> None:
        self._connection = connection
        self._consumers = consumers
        self._prefetch = prefetch
        self._handling = handling
        self._metrics = metrics
        self._subscriptions: list[tuple[Channel, str]] = []
        self._outgoing: Channel | None = None
        self._stopping = False
        self._tasks = tasks  # the worker's: handlers can outlive the session
        self.is_lost = False
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Done, with the reason, when no more messages will come."""

    async def open(self, *, events_exchange: str, may_declare: bool) -> None:
        """See to the topology and start to consume. Raises TopologyError, or whatever a lost connection raises."""
        self._connection.close_callbacks.add(self._on_lost)
        topology = plan_topology(self._consumers, events_exchange)
        await (declare if may_declare else check)(self._connection, topology)
        self._outgoing = await self._open_channel(confirms=True)
        for consumer in self._consumers:
            channel = await self._open_channel(confirms=False)
            await channel.basic_qos(prefetch_count=consumer.prefetch or self._prefetch)
            try:
                consuming = await channel.basic_consume(consumer.queue, self._receiver(consumer, channel))
            except ChannelClosed as error:
                raise TopologyError(explain(error, f"queue {consumer.queue}", "consume from")) from error
            assert consuming.consumer_tag is not None
            self._subscriptions.append((channel, consuming.consumer_tag))

    def consuming(self) -> int:
        """How many consumers the broker knows of. One that it cancelled (its queue was deleted) ends the session."""
        active = sum(tag in channel.consumers for channel, tag in self._subscriptions)
        if active < len(self._subscriptions) and not self._stopping:
            self.end("the broker cancelled a consumer: was its queue deleted?")
        return active

    async def dead_letter_depths(self) -> dict[str, int]:
        """How many messages each dead-letter queue holds."""
        channel = await self._connection.channel(publisher_confirms=False)
        try:
            underlay = await channel.get_underlay_channel()
            depths = {}
            for queue in dict.fromkeys(consumer.queue for consumer in self._consumers):
                declared = await underlay.queue_declare(dead_letter_queue(queue), passive=True)
                depths[queue] = declared.message_count or 0
            return depths
        finally:
            await channel.close()

    async def stop_consuming(self) -> None:
        """No more messages; those that come in between go back."""
        self._stopping = True
        with suppress(Exception):  # the connection may be gone
            async with asyncio.timeout(CANCEL_SECONDS):
                for channel, tag in self._subscriptions:
                    await channel.basic_cancel(tag)

    async def close(self) -> None:
        self._stopping = True
        with suppress(Exception):
            async with asyncio.timeout(CANCEL_SECONDS):
                await self._connection.close()

    def end(self, reason: str) -> None:
        if not self.ended.done():
            self.ended.set_result(reason)

    # -- one message --------------------------------------------------------------------------------------------------

    def _receiver(
        self, consumer: AnyConsumer, channel: Channel
    ) -> Callable[[DeliveredMessage], Coroutine[Any, Any, None]]:
        async def receive(received: DeliveredMessage) -> None:
            # A task of our own: aiormq cancels its own when the connection is lost.
            task = asyncio.create_task(self._process(consumer, channel, received))
            self._tasks.add(task)
            task.add_done_callback(self._on_done)

        return receive

    async def _process(self, consumer: AnyConsumer, channel: Channel, received: DeliveredMessage) -> None:
        self._metrics.received(consumer.name)
        assert received.delivery_tag is not None
        try:
            if self._stopping:
                raise NotStarted
            delivery = read_delivery(received, time.time())
            fate = await self._decide(consumer, delivery)
        except NotStarted:
            self._metrics.processed(consumer.name, "requeued")
            with suppress(Exception):  # without a channel the broker requeues it by itself
                await channel.basic_nack(received.delivery_tag, requeue=True, wait=False)
            return
        if not isinstance(fate, Done) and not await self._hand_on(fate, consumer, received, delivery):
            return
        try:
            await channel.basic_ack(received.delivery_tag, wait=False)
        except Exception as error:
            log.warning("not_acknowledged", **delivery.describe(), error=_text(error), hint="it is delivered again")
        self._metrics.processed(consumer.name, _status(fate))

    async def _decide(self, consumer: AnyConsumer, delivery: Delivery) -> Fate:
        try:
            return DONE if await self._handling.handle(consumer, delivery) else DUPLICATE
        except NotStarted:
            raise
        except (Exception, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and self._stopping:
                raise
            fate = after_failure(error, delivery, consumer.retry_delays, time.time())
            event = log.bind(**delivery.describe(), consumer=consumer.name, error=getattr(fate, "error", ""))
            if isinstance(fate, Retry):
                event.warning("failed", retry_in=fate.delay.text, exc_info=error)
            elif isinstance(fate, Bury):
                event.error("buried", reason=fate.reason, exc_info=error if fate.reason == "max attempts" else None)
                if fate.reason != "rejected":
                    report(error)
            return fate

    async def _hand_on(
        self, fate: Retry | Bury, consumer: AnyConsumer, received: DeliveredMessage, delivery: Delivery
    ) -> bool:
        """Send the message to its delay or to the dead letters; whether the broker has it."""
        exchange = delay_exchange(fate.delay) if isinstance(fate, Retry) else DEAD_EXCHANGE
        message = message_for(fate, received, delivery)
        try:
            assert self._outgoing is not None
            await self._outgoing.basic_publish(
                message.body,
                exchange=exchange,
                routing_key=consumer.queue,
                properties=message.properties,
                mandatory=True,
            )
        except Exception as error:
            log.error("not_handed_on", **delivery.describe(), exchange=exchange, error=_text(error))
            self.end(f"the broker did not take a message for {exchange}: {_text(error)}")
            return False
        if isinstance(fate, Retry):
            self._metrics.retried(consumer.name, fate.delay.text)
        return True

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        # A bug of ours, or of whoever renders our logs. Its message is in nobody's hands: give it back.
        if not task.cancelled() and (error := task.exception()) is not None:
            self.end(f"unexpected {_text(error)}")

    # -- channels -----------------------------------------------------------------------------------------------------

    async def _open_channel(self, *, confirms: bool) -> Channel:
        channel: AbstractChannel = self._connection.channel(publisher_confirms=confirms, on_return_raises=confirms)
        await channel.initialize()
        channel.close_callbacks.add(self._on_close)
        return cast(Channel, await channel.get_underlay_channel())

    def _on_lost(self, _: object, error: BaseException | None) -> None:
        self.is_lost = True
        self.end(_text(error) if error is not None else "the connection is closed")

    def _on_close(self, _: object, error: BaseException | None) -> None:
        self.end(_text(error) if error is not None else "a channel is closed")


def _status(fate: Fate) -> str:
    match fate:
        case Retry():
            return "retried"
        case Bury(reason=reason):
            return reason
        case Done(duplicate=duplicate):
            return "duplicate" if duplicate else "done"


def _text(error: BaseException) -> str:
    return one_line(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)
