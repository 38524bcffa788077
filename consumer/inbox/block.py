"""
Block: a context manager that is entered by `with` or by `async with`, whichever suits the library behind it.

One object for both, so that there is one name to remember; the wrong one of the two is a TypeError that says so.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from types import TracebackType
from typing import Generic, TypeVar

T = TypeVar("T")

Enter = Callable[[], AbstractContextManager[T]]
AsyncEnter = Callable[[], AbstractAsyncContextManager[T]]


class Block(Generic[T]):
    """At least one of `enter` and `enter_async` is given; `what` names the thing in errors. Entered once."""

    def __init__(self, what: str, enter: Enter[T] | None, enter_async: AsyncEnter[T] | None) -> None:
        self._what = what
        self._enter = enter
        self._enter_async = enter_async

    def __enter__(self) -> T:
        if self._enter is None:
            raise TypeError(f"{self._what} is asynchronous: write `async with`")
        self._block = self._enter()
        return self._block.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return self._block.__exit__(kind, error, trace)

    async def __aenter__(self) -> T:
        if self._enter_async is None:
            raise TypeError(f"{self._what} is synchronous: write `with`, in a plain function")
        self._async_block = self._enter_async()
        return await self._async_block.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._async_block.__aexit__(kind, error, trace)
