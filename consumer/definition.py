"""
Consumer: a handler function, the messages that it handles, and its retry delays.

    @consume("order.*", queue="billing.on_order", retry_delays=("1s", "10s", "1m", "5m"))
    async def bill(order: Order, event_id: UUID) -> None: ...

`consume` turns the function into a Consumer; `Consumer(function, ...)` does the same. Calling a Consumer calls the
function, so unit tests need no broker. Options and signature are checked at definition. This module neither connects
nor declares anything.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from copy import copy
from enum import Enum
from typing import Any, Final, Generic, Literal, ParamSpec, Self, TypeVar

from outrider.consumer.arguments import plan_arguments
from outrider.settings.durations import Duration, parse_duration
from outrider.storage.message import DEFAULT_EXCHANGE

P = ParamSpec("P")
R = TypeVar("R")


class _Generated(Enum):
    QUEUE = "module and name of the function"


GENERATED: Final = _Generated.QUEUE
"""The value of `queue` that names the queue after the function."""

DEFAULT_PREFETCH: Final = 50
DEFAULT_RETRY_DELAYS: Final = ("1s", "10s", "1m", "5m")
LONGEST_QUEUE_NAME: Final = 255 - len(".dlq")
LONGEST_RETRY_DELAY_MILLISECONDS: Final = 2**32 - 1
"""The longest time to live of a message that RabbitMQ accepts."""


class Consumer(Generic[P, R]):
    """
    A handler of messages.

    routing_keys   topic patterns (`order.*`, `#`) that bind the queue; none: the queue is not bound to an exchange
    queue          the queue; all workers with this consumer share it. GENERATED: the module and name of the function,
                   such as shop.consumers.bill. A function that is renamed or moved then has a new queue
    exchange       the exchange of the events; None: the worker's `exchange`
    retry_delays   the delay after each failed attempt; after the last one the message is buried. (): no retry; None:
                   the worker's `retry_delays`
    prefetch       messages that a worker holds at a time; None: the worker's `prefetch`
    inbox          run the handler in a transaction that applies each event once
    replays        whether the handler wants events that an operator replays (with the inbox: once for each replay);
                   False: they are skipped, with a line in the log
    name           the consumer's name in the inbox and in metrics; the queue's name by default
    """

    __name__: str
    __qualname__: str

    def __init__(
        self,
        function: Callable[P, R],
        *routing_keys: str,
        queue: str | Literal[_Generated.QUEUE],
        exchange: str | None = None,
        retry_delays: Sequence[str] | None = None,
        prefetch: int | None = None,
        inbox: bool = False,
        replays: bool = True,
        name: str | None = None,
    ) -> None:
        if not callable(function):
            raise TypeError('a consumer needs a function: @consume("order.*", queue="billing.on_order")')
        for key in routing_keys:
            _check_name("a routing key", key, 255)
        self.function = function
        self.routing_keys = routing_keys
        queue = _generate_name(function) if queue is GENERATED else queue
        self.queue = _check_name("queue", queue, LONGEST_QUEUE_NAME)
        self.exchange = None if exchange is None else _check_name("exchange", exchange, 255)
        self.retry_delays = None if retry_delays is None else parse_retry_delays(retry_delays)
        self.prefetch = None if prefetch is None else check_prefetch(prefetch)
        self.inbox = inbox
        self.replays = replays
        self.name = queue if name is None else _check_name("name", name, 255)
        self.is_async = _is_async(function)
        self.arguments = plan_arguments(function, inbox=inbox)
        functools.update_wrapper(self, function, updated=())

    def with_defaults(
        self,
        *,
        exchange: str = DEFAULT_EXCHANGE,
        retry_delays: tuple[Duration, ...] | None = None,
        prefetch: int = DEFAULT_PREFETCH,
    ) -> Self:
        """A copy in which the worker's values replace those that this consumer leaves open."""
        consumer = copy(self)
        consumer.exchange = self.exchange or exchange
        if self.retry_delays is None:
            consumer.retry_delays = parse_retry_delays(DEFAULT_RETRY_DELAYS) if retry_delays is None else retry_delays
        consumer.prefetch = self.prefetch or prefetch
        return consumer

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<Consumer {self.name} of {self.queue}>"


def consume(
    *routing_keys: str,
    queue: str | Literal[_Generated.QUEUE],
    exchange: str | None = None,
    retry_delays: Sequence[str] | None = None,
    prefetch: int | None = None,
    inbox: bool = False,
    replays: bool = True,
    name: str | None = None,
) -> Callable[[Callable[P, R]], Consumer[P, R]]:
    """Turn a function into a Consumer. The options are those of Consumer."""
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
            replays=replays,
            name=name,
        )

    return decorate


AnyConsumer = Consumer[..., Any]


def check_prefetch(value: Any) -> int:
    if type(value) is not int or not 1 <= value <= 65535:
        raise ValueError(f"prefetch must be a number of messages from 1 to 65535, not {value!r}")
    return value


def parse_retry_delays(values: Sequence[str]) -> tuple[Duration, ...]:
    if isinstance(values, str):
        raise TypeError('retry_delays is a sequence of durations: ("1s", "10s")')
    return tuple(map(_parse_retry_delay, values))


def _parse_retry_delay(value: object) -> Duration:
    if not isinstance(value, str):
        raise TypeError(f"a retry delay is text such as 500ms, 10s or 1m30s, not {value!r}")
    delay = parse_duration(value)
    if delay.milliseconds > LONGEST_RETRY_DELAY_MILLISECONDS:
        raise ValueError(f"a retry delay is at most {LONGEST_RETRY_DELAY_MILLISECONDS} ms, not {value!r}")
    return delay


def _generate_name(function: Callable[..., Any]) -> str:
    name = f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', '')}"
    if not all(part.isidentifier() and part != "__main__" for part in name.split(".")):
        raise TypeError(
            f"{name} is not the same name in every process: a generated queue needs a function at the top of a module"
        )
    return name


def _check_name(what: str, value: object, longest: int) -> str:
    if not isinstance(value, str) or not value:
        raise TypeError(f"{what} must be a non-empty string, not {value!r}")
    if len(value.encode()) > longest:
        raise ValueError(f"{what} has more than {longest} bytes: {value[:40]!r}...")
    return value


def _is_async(function: Callable[..., Any]) -> bool:
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004
