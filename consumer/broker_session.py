"""
BrokerSession: one connection to the broker, from declaring the topology to the last acknowledgement.

A message is acknowledged only after its handler finished, or after the broker confirmed its copy in a delay or
dead-letter queue. If the broker refuses a copy, the session ends: the message returns to its queue, and the next
session declares or checks the topology again. A lost connection does not interrupt running handlers; their messages can
no longer be acknowledged, and the broker delivers them again.

Confirms have no timeout: a broker under a memory or disk alarm delays them, and a dead broker misses its heartbeats.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import cast

from aio_pika.abc import AbstractChannel, AbstractConnection
from aiormq.abc import DeliveredMessage
from aiormq.channel import Channel
from aiormq.exceptions import ChannelClosed

from outrider.consumer.context import report_to_sentry
from outrider.consumer.declare import check, declare, explain
from outrider.consumer.definition import DEFAULT_PREFETCH, AnyConsumer
from outrider.consumer.delivery import Delivery, read_delivery
from outrider.consumer.errors import NotStarted, TopologyError
from outrider.consumer.handler_runner import HandlerRunner
from outrider.consumer.logs import Logger, format_error
from outrider.consumer.metrics import ConsumerMetrics
from outrider.consumer.retry_decision import Bury, RetryAfterDelay, decide_after_failure, forwarded_properties
from outrider.consumer.topology import DEAD_EXCHANGE, dead_letter_queue, delay_exchange, plan_topology
from outrider.failures import describe_error

CANCEL_SECONDS = 5.0


class BrokerSession:
    def __init__(
        self,
        connection: AbstractConnection,
        consumers: Sequence[AnyConsumer],
        *,
        runner: HandlerRunner,
        metrics: ConsumerMetrics,
        tasks: set[asyncio.Task[None]],
        log: Logger,
    ) -> None:
        """`consumers` have the worker's values for what they leave open."""
        self._connection = connection
        self._consumers = consumers
        self._runner = runner
        self._metrics = metrics
        self._subscriptions: list[tuple[Channel, str]] = []
        self._publish_channel: Channel | None = None
        self._stopping = False
        self._log = log
        self._tasks = tasks  # shared with the worker: handlers can outlive the session
        self.is_lost = False
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Set to the reason when the session has ended."""

    async def open(self, *, may_declare: bool) -> None:
        """Declare or check the topology and start consuming. Raises TopologyError or the error of a lost connection."""
        self._connection.close_callbacks.add(self._on_connection_closed)
        topology = plan_topology(self._consumers)
        await (declare if may_declare else check)(self._connection, topology)
        self._publish_channel = await self._open_channel(confirms=True)
        for consumer in self._consumers:
            channel = await self._open_channel(confirms=False)
            await channel.basic_qos(prefetch_count=consumer.prefetch or DEFAULT_PREFETCH)
            try:
                consuming = await channel.basic_consume(consumer.queue, partial(self._receive, consumer, channel))
            except ChannelClosed as error:
                raise TopologyError(explain(error, f"queue {consumer.queue}", "consume from")) from error
            assert consuming.consumer_tag is not None
            self._subscriptions.append((channel, consuming.consumer_tag))

    def consuming(self) -> int:
        """Number of active consumers. Ends the session if the broker cancelled one (its queue was deleted)."""
        active = sum(tag in channel.consumers for channel, tag in self._subscriptions)
        if active < len(self._subscriptions) and not self._stopping:
            self.end("the broker cancelled a consumer: was its queue deleted?")
        return active

    async def dead_letter_depths(self) -> dict[str, int]:
        """Number of messages in each dead-letter queue."""
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
        """Cancel the consumers. Messages that still arrive return to their queue."""
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

    # -- handling one message -----------------------------------------------------------------------------------------

    async def _receive(self, consumer: AnyConsumer, channel: Channel, received: DeliveredMessage) -> None:
        # In a new task: aiormq cancels the task of this callback when the connection is lost.
        task = asyncio.create_task(self._process(consumer, channel, received))
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)

    async def _process(self, consumer: AnyConsumer, channel: Channel, received: DeliveredMessage) -> None:
        self._metrics.received(consumer.name)
        assert received.delivery_tag is not None
        try:
            if self._stopping:
                raise NotStarted
            delivery = read_delivery(received, time.time(), consumer.queue)
            status = await self._handle(consumer, received, delivery)
        except NotStarted:
            self._metrics.processed(consumer.name, "requeued")
            with suppress(Exception):  # if the channel is closed, the broker has requeued it
                await channel.basic_nack(received.delivery_tag, requeue=True, wait=False)
            return
        if status is None:
            return
        try:
            await channel.basic_ack(received.delivery_tag, wait=False)
        except Exception as error:
            self._log.warning(
                "not_acknowledged",
                **delivery.describe(),
                error=describe_error(error),
                hint="the broker delivers it again",
            )
        self._metrics.processed(consumer.name, status)

    async def _handle(self, consumer: AnyConsumer, received: DeliveredMessage, delivery: Delivery) -> str | None:
        """
        Run the handler; if it fails, forward the message. Returns the status for the metrics, or None if the broker did
        not confirm the copy. Raises NotStarted if the handler did not start.

        Whatever the handler raises is a failure of its message, also SystemExit, KeyboardInterrupt and GeneratorExit:
        passed on, asyncio would end the event loop or the session with them. Only signals end a worker.
        """
        try:
            return "done" if await self._runner.run(consumer, delivery) else "duplicate"
        except NotStarted:
            raise
        except BaseException as error:
            if _is_from_outside(error, self._stopping):
                raise
            decision = decide_after_failure(error, delivery, consumer.retry_delays or (), time.time())
            event = self._log.bind(**delivery.describe(), consumer=consumer.name, error=decision.error)
            if isinstance(decision, RetryAfterDelay):
                event.warning("failed", retry_in=decision.delay.text, exception=format_error(error))
            else:
                trace = {"exception": format_error(error)} if decision.reason == "max attempts" else {}
                event.error("buried", reason=decision.reason, **trace)
                if decision.reason != "rejected":
                    report_to_sentry(error)
        return await self._forward(decision, consumer, received, delivery)

    async def _forward(
        self, decision: RetryAfterDelay | Bury, consumer: AnyConsumer, received: DeliveredMessage, delivery: Delivery
    ) -> str | None:
        """Publish a copy to the delay or dead-letter exchange. None if the broker did not confirm it."""
        exchange = delay_exchange(decision.delay) if isinstance(decision, RetryAfterDelay) else DEAD_EXCHANGE
        try:
            assert self._publish_channel is not None
            await self._publish_channel.basic_publish(
                received.body,
                exchange=exchange,
                routing_key=consumer.queue,
                properties=forwarded_properties(decision, received, delivery),
                mandatory=True,
            )
        except Exception as error:
            self._log.error("not_forwarded", **delivery.describe(), exchange=exchange, error=describe_error(error))
            self.end(f"the broker did not accept a message for exchange {exchange}: {describe_error(error)}")
            return None
        if isinstance(decision, Bury):
            return decision.reason
        self._metrics.retried(consumer.name, decision.delay.text)
        return "retried"

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        # A bug in this module or in a log processor. The message is not acknowledged: ending the session requeues it.
        if not task.cancelled() and (error := task.exception()) is not None:
            self.end(f"unexpected {describe_error(error)}")

    # -- channels -----------------------------------------------------------------------------------------------------

    async def _open_channel(self, *, confirms: bool) -> Channel:
        channel: AbstractChannel = self._connection.channel(publisher_confirms=confirms, on_return_raises=confirms)
        await channel.initialize()
        channel.close_callbacks.add(self._on_channel_closed)
        return cast(Channel, await channel.get_underlay_channel())

    def _on_connection_closed(self, _: object, error: BaseException | None) -> None:
        self.is_lost = True
        self.end(describe_error(error) if error is not None else "the connection is closed")

    def _on_channel_closed(self, _: object, error: BaseException | None) -> None:
        self.end(describe_error(error) if error is not None else "a channel is closed")


def _is_from_outside(error: BaseException, stopping: bool) -> bool:
    """Whether the handler was cancelled at the shutdown, or its coroutine closed after the event loop has ended."""
    if isinstance(error, GeneratorExit):
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return True
    return stopping and isinstance(error, asyncio.CancelledError)
