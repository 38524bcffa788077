"""
Consumers: a function, the messages it handles, and how often they are tried again.

    @consume("order.*", queue="billing.on_order", retry_delays=("1s", "10s", "1m", "5m"))
    async def bill(order: Order, event_id: UUID) -> None: ...

`consume` makes a Consumer of the function; `Consumer(function, ...)` is the explicit form. Calling a Consumer calls the
function, so that tests need no broker. Everything about a definition is checked when it is made; nothing is connected
or declared here.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, ParamSpec, TypeVar

from outrider.consumer.arguments import plan_arguments
from outrider.consumer.durations import parse_duration

P = ParamSpec("P")
R = TypeVar("R")

DEFAULT_RETRY_DELAYS: Final = ("1s", "10s", "1m", "5m")
LONGEST_QUEUE_NAME: Final = 255 - len(".dlq")


class Consumer(Generic[P, R]):
    """
    A handler of messages.

    routing_keys   topic patterns (`order.*`, `#`) by which its queue is bound; none: only what is sent to the queue
    queue          its queue, which all workers with this consumer share
    exchange       where the events are published; None: the worker's
    retry_delays   how long a message waits after each failure; after the last it goes to the dead letters
    prefetch       how many messages a worker holds at a time; None: the worker's
    inbox          run the handler inside a transaction in which each event is applied once
    name           under which the inbox knows it; the queue's by default
    """

    __name__: str
    __qualname__: str

    def __init__(
        self,
        function: Callable[P, R],
        *routing_keys: str,
        queue: str,
        exchange: str | None = None,
        retry_delays: Sequence[str] = DEFAULT_RETRY_DELAYS,
        prefetch: int | None = None,
        inbox: bool = False,
        name: str | None = None,
    ) -> None:
        if not callable(function):
            raise TypeError('a consumer needs a function: @consume("order.*", queue="billing.on_order")')
        if isinstance(retry_delays, str):
            raise TypeError('retry_delays is a sequence of durations: ("1s", "10s")')
        for key in routing_keys:
            _check_name("a routing key", key, 255)
        self.function = function
        self.routing_keys = routing_keys
        self.queue = _check_name("queue", queue, LONGEST_QUEUE_NAME)
        self.exchange = None if exchange is None else _check_name("exchange", exchange, 255)
        self.retry_delays = tuple(map(parse_duration, retry_delays))
        self.prefetch = None if prefetch is None else check_prefetch(prefetch)
        self.inbox = inbox
        self.name = queue if name is None else _check_name("name", name, 255)
        self.is_async = _is_async(function)
        self.arguments = plan_arguments(function, inbox=inbox)
        functools.update_wrapper(self, function, updated=())

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<Consumer {self.name} of {self.queue}>"


def consume(
    *routing_keys: str,
    queue: str,
    exchange: str | None = None,
    retry_delays: Sequence[str] = DEFAULT_RETRY_DELAYS,
    prefetch: int | None = None,
    inbox: bool = False,
    name: str | None = None,
) -> Callable[[Callable[P, R]], Consumer[P, R]]:
    """Make a consumer of a function. The options are those of Consumer."""
    if routing_keys and not isinstance(routing_keys[0], str):
        raise TypeError('consume takes routing keys and a queue: @consume("order.*", queue="billing.on_order")')

    def decorate(function: Callable[P, R]) -> Consumer[P, R]:
        return Consumer(
            function,
            *routing_keys,
            queue=queue,
            exchange=exchange,
            retry_delays=retry_delays,
            prefetch=prefetch,
            inbox=inbox,
            name=name,
        )

    return decorate


AnyConsumer = Consumer[..., Any]


def check_prefetch(value: Any) -> int:
    if type(value) is not int or not 1 <= value <= 65535:
        raise ValueError(f"prefetch is a number of messages from 1 to 65535, not {value!r}")
    return value


def _check_name(what: str, value: object, longest: int) -> str:
    if not isinstance(value, str) or not value:
        raise TypeError(f"{what} is a text that is not empty, not {value!r}")
    if len(value.encode()) > longest:
        raise ValueError(f"{what} has more than {longest} bytes: {value[:40]!r}...")
    return value


def _is_async(function: Callable[..., Any]) -> bool:
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004
