"""
Handling: call a handler for a message, in its context, in a thread if it is a plain function, and in the inbox's
transaction if it wants one. Nothing here knows of the broker.
"""

from __future__ import annotations

import inspect
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from outrider.consumer.context import restored
from outrider.consumer.definition import AnyConsumer
from outrider.consumer.delivery import Delivery
from outrider.consumer.errors import Expired, Undecodable
from outrider.consumer.inbox.once import Inbox
from outrider.consumer.inbox.transactions import is_async, open_transaction
from outrider.consumer.retry_decision import is_expired
from outrider.consumer.threads import Threads
from outrider.errors import SettingsError

Observe = Callable[[str, float], None]
"""Told how long the handler of a consumer ran, in seconds; from any thread."""


class Handling:
    def __init__(self, threads: Threads, *, database: Any, schema: str, observe: Observe) -> None:
        self._threads = threads
        self._database = database
        self._inbox = Inbox(schema=schema)
        self._observe = observe

    async def handle(self, consumer: AnyConsumer, delivery: Delivery) -> bool:
        """
        Let the consumer handle the message. False if the inbox knows it: then it was not called.

        Raises what the handler raises, Undecodable, or NotStarted if it waited for a thread in vain.
        """
        arguments = consumer.arguments.bind(delivery)
        if consumer.inbox and not delivery.event_id:
            raise Undecodable("the message has no message_id, by which the inbox knows it")
        with restored(delivery, consumer.name):
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
                # An exception ends the whole transaction: no need for a savepoint to undo a part of it.
                self._inbox.once(handle, consumer.name, delivery.event_id, undo=False) as fresh,
            ):
                if fresh:
                    await consumer.function(**_with_handle(consumer, arguments, handle))
            return fresh
        finally:
            self._observe(consumer.name, time.perf_counter() - began)

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
                self._inbox.once(handle, consumer.name, delivery.event_id, undo=False) as fresh,
            ):
                if fresh:
                    _refuse_awaitable(consumer.function(**_with_handle(consumer, arguments, handle)))
            return fresh
        finally:
            self._observe(consumer.name, time.perf_counter() - began)


def check_database(consumers: Sequence[AnyConsumer], database: Any) -> None:
    """SettingsError for a consumer with inbox=True whose transaction could never be opened."""
    for consumer in consumers:
        if not consumer.inbox:
            continue
        if database is None:
            raise SettingsError(f"{consumer.name} has inbox=True: give the worker a database (inbox_database)")
        try:
            wanted = is_async(database)
        except TypeError as error:
            raise SettingsError(f"inbox_database: {error}") from None
        if wanted is not None and wanted is not consumer.is_async:
            kinds = (
                ("an async def", "an asynchronous database") if consumer.is_async else ("a plain def", "a plain one")
            )
            raise SettingsError(f"{consumer.name} is {kinds[0]}: its inbox needs {kinds[1]}")


def _refuse_expired(delivery: Delivery) -> None:
    """At the last moment: it may have waited for a thread."""
    if is_expired(delivery, time.time()):
        raise Expired("its time was over before it could be handled")


def _with_handle(consumer: AnyConsumer, arguments: dict[str, Any], handle: Any) -> dict[str, Any]:
    name = consumer.arguments.handle
    return arguments if name is None else {**arguments, name: handle}


def _refuse_awaitable(result: object) -> None:
    """What is not awaited has not happened, and the message would be gone."""
    if inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()
        raise TypeError("the handler is a plain function and returned an awaitable: make it `async def`")


def _drop_stale_django_connections() -> None:
    """As Django does around a request: threads live long, and connections do not."""
    settings, database = sys.modules.get("django.conf"), sys.modules.get("django.db")
    if settings is not None and database is not None and settings.settings.configured:
        database.close_old_connections()
