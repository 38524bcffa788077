"""
HandlerRunner: call a handler for a message, with the message's context restored.

A plain function runs in a thread. With inbox=True the handler runs in a transaction that also marks the event as
processed. This module does not talk to the broker.
"""

from __future__ import annotations

import inspect
import sys
import time
from collections.abc import Sequence
from typing import Any

from outrider.consumer.context import restored_context
from outrider.consumer.definition import AnyConsumer
from outrider.consumer.delivery import Delivery
from outrider.consumer.errors import Expired, Undecodable
from outrider.consumer.inbox.once import Inbox
from outrider.consumer.inbox.transactions import is_async, open_transaction
from outrider.consumer.metrics import ConsumerMetrics
from outrider.consumer.retry_decision import is_expired
from outrider.consumer.threads import Threads
from outrider.errors import SettingsError
from outrider.telemetry.logs import get_logger

log = get_logger(__name__)


class HandlerRunner:
    def __init__(self, threads: Threads, *, database: Any, schema: str, metrics: ConsumerMetrics) -> None:
        self._threads = threads
        self._database = database
        self._inbox = Inbox(schema=schema)
        self._metrics = metrics

    async def run(self, consumer: AnyConsumer, delivery: Delivery) -> bool:
        """
        Call the handler. False if it was not called: the inbox already has the event, or the message is a replay and
        the handler wants none.

        Raises what the handler raises, Undecodable, Expired, or NotStarted if no thread was free before the shutdown.
        """
        if delivery.replay_id is not None and not consumer.replays:
            log.info("replay_skipped", consumer=consumer.name, replay_id=delivery.replay_id, **delivery.describe())
            return False
        arguments = consumer.arguments.bind(delivery)
        if consumer.inbox and not delivery.event_id:
            raise Undecodable("the message has no message_id, which the inbox needs to recognise it")
        with restored_context(delivery, consumer.name):
            if consumer.is_async:
                return await self._run_async(consumer, delivery, arguments)
            return await self._threads.run(lambda: self._run(consumer, delivery, arguments))

    async def _run_async(self, consumer: AnyConsumer, delivery: Delivery, arguments: dict[str, Any]) -> bool:
        _refuse_expired(delivery)
        began = time.perf_counter()
        try:
            if not consumer.inbox:
                await consumer.function(**arguments)
                return True
            async with (
                open_transaction(self._database) as handle,
                # An exception rolls the whole transaction back: no savepoint is needed.
                self._inbox.once(
                    handle, consumer.name, delivery.event_id, undo=False, replay_id=delivery.replay_id
                ) as fresh,
            ):
                if fresh:
                    await consumer.function(**_with_handle(consumer, arguments, handle))
            return fresh
        finally:
            self._metrics.handler_ran(consumer.name, time.perf_counter() - began)

    def _run(self, consumer: AnyConsumer, delivery: Delivery, arguments: dict[str, Any]) -> bool:
        _refuse_expired(delivery)
        began = time.perf_counter()
        try:
            if not consumer.inbox:
                _drop_stale_django_connections()
                try:
                    _refuse_awaitable(consumer.function(**arguments))
                finally:
                    _drop_stale_django_connections()
                return True
            with (
                open_transaction(self._database) as handle,
                self._inbox.once(
                    handle, consumer.name, delivery.event_id, undo=False, replay_id=delivery.replay_id
                ) as fresh,
            ):
                if fresh:
                    _refuse_awaitable(consumer.function(**_with_handle(consumer, arguments, handle)))
            return fresh
        finally:
            self._metrics.handler_ran(consumer.name, time.perf_counter() - began)


def check_database(consumers: Sequence[AnyConsumer], database: Any) -> None:
    """Raise SettingsError for a consumer with inbox=True if its transaction cannot be opened with this database."""
    for consumer in consumers:
        if not consumer.inbox:
            continue
        if database is None:
            raise SettingsError(f"{consumer.name} has inbox=True: give the worker a database (inbox_database)")
        try:
            database_is_async = is_async(database)
        except TypeError as error:
            raise SettingsError(f"inbox_database: {error}") from None
        if database_is_async is not None and database_is_async is not consumer.is_async:
            if consumer.is_async:
                raise SettingsError(f"{consumer.name} is an async def: its inbox needs an asynchronous database")
            raise SettingsError(f"{consumer.name} is a plain def: its inbox needs a synchronous database")


def _refuse_expired(delivery: Delivery) -> None:
    """Checked immediately before the call, because the message may have waited for a thread."""
    if is_expired(delivery, time.time()):
        raise Expired("the message expired before its handler started")


def _with_handle(consumer: AnyConsumer, arguments: dict[str, Any], handle: Any) -> dict[str, Any]:
    name = consumer.arguments.handle
    return arguments if name is None else {**arguments, name: handle}


def _refuse_awaitable(result: object) -> None:
    """An awaitable that is not awaited does nothing, and the message would be acknowledged."""
    if inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()
        raise TypeError("the handler is a plain function and returned an awaitable: make it `async def`")


def _drop_stale_django_connections() -> None:
    """Do what Django does around a request: the threads outlive database connections."""
    settings, database = sys.modules.get("django.conf"), sys.modules.get("django.db")
    if settings is not None and database is not None and settings.settings.configured:
        database.close_old_connections()
