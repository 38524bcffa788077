"""
SyncOrAsyncContext: a context manager for `with` or for `async with`, depending on the library of the handle.

One class for both, so that callers have one function to call. The wrong statement raises a TypeError that names the
right one.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, Generic, TypeVar

T = TypeVar("T")

Enter = Callable[[], AbstractContextManager[T]]
AsyncEnter = Callable[[], AbstractAsyncContextManager[T]]


class SyncOrAsyncContext(Generic[T]):
    """`enter` or `enter_async` or both are given; `name` is used in errors. Can be entered once."""

    def __init__(self, name: str, enter: Enter[T] | None, enter_async: AsyncEnter[T] | None) -> None:
        self._name = name
        self._enter = enter
        self._enter_async = enter_async

    def __enter__(self) -> T:
        if self._enter is None:
            raise TypeError(f"{self._name} is asynchronous: write `async with`")
        self._entered = self._enter()
        return self._entered.__enter__()

    def __exit__(self, *error: Any) -> bool | None:
        return self._entered.__exit__(*error)

    async def __aenter__(self) -> T:
        if self._enter_async is None:
            raise TypeError(f"{self._name} is synchronous: write `with`, in a plain function")
        self._entered_async = self._enter_async()
        return await self._entered_async.__aenter__()

    async def __aexit__(self, *error: Any) -> bool | None:
        return await self._entered_async.__aexit__(*error)
