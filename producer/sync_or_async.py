"""
Run a function of several statements on a synchronous or an asynchronous handle, with one implementation.

Such a function is a generator: it yields a Query and is sent the rows. `run_queries` runs it on a handle; with a
synchronous handle it returns the generator's result, with an asynchronous one an awaitable of it.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, NamedTuple, TypeVar

from outrider.producer.handles import Guard, Rows, adapter_for, no_guard
from outrider.producer.statement import Parameters, Statement

T = TypeVar("T")


class Query(NamedTuple):
    """A statement whose rows are wanted. Statements that only read need no guard."""

    statement: Statement
    parameters: Parameters
    guard: Guard = no_guard


Queries = Generator[Query, Rows, T]


def run_queries(handle: Any, queries: Queries[T]) -> Any:
    """Run the generator to its end."""
    if adapter_for(handle).is_async:
        return _run_async(handle, queries)
    return _run(handle, queries)


def _run(handle: Any, queries: Queries[T]) -> T:
    adapter = adapter_for(handle)
    try:
        query = next(queries)
        while True:
            query = queries.send(adapter.fetch(handle, *query))
    except StopIteration as end:
        result: T = end.value
        return result


async def _run_async(handle: Any, queries: Queries[T]) -> T:
    adapter = adapter_for(handle)
    try:
        query = next(queries)
        while True:
            query = queries.send(await adapter.fetch(handle, *query))
    except StopIteration as end:
        result: T = end.value
        return result
