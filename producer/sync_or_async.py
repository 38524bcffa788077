"""
Steps: logic that needs several statements, written once for synchronous and asynchronous handles.

Such logic is a generator that yields what to fetch and is sent the rows; `finish` runs it on an adapter. With a
synchronous adapter it returns the generator's result, with an asynchronous one an awaitable of it.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, NamedTuple, TypeVar

from outrider.producer.handles import Adapter, Guard, Rows
from outrider.producer.statement import Parameters, Statement

T = TypeVar("T")


def unguarded(in_transaction: bool) -> None:
    """For statements that only read: they are welcome outside a transaction."""


class Fetch(NamedTuple):
    handle: Any
    statement: Statement
    parameters: Parameters
    guard: Guard


Steps = Generator[Fetch, Rows, T]


def fetch(handle: Any, statement: Statement, parameters: Parameters, guard: Guard = unguarded) -> Fetch:
    return Fetch(handle, statement, parameters, guard)


def finish(adapter: Adapter, steps: Steps[T]) -> Any:
    """Run the steps to their end."""
    return _finish_async(adapter, steps) if adapter.is_async else _finish(adapter, steps)


def _finish(adapter: Adapter, steps: Steps[T]) -> T:
    try:
        step = next(steps)
        while True:
            step = steps.send(adapter.fetch(*step))
    except StopIteration as end:
        result: T = end.value
        return result


async def _finish_async(adapter: Adapter, steps: Steps[T]) -> T:
    try:
        step = next(steps)
        while True:
            step = steps.send(await adapter.fetch(*step))
    except StopIteration as end:
        result: T = end.value
        return result
