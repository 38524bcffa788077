"""
Types of handles: with a synchronous one a publish returns its result, with an asynchronous one an awaitable of it.

These are protocols, so that type checkers need no library installed. No handle matches both kinds. At run time handles
are recognised by their class (outrider.producer.handles), and anything else raises TypeError.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol


class AsyncHandle(Protocol):
    """Asynchronous connections, cursors and sessions of psycopg, SQLAlchemy and asyncpg."""

    @property
    def execute(self) -> Callable[..., Awaitable[Any]]: ...


class BlockingHandle(Protocol):
    """Connections, cursors and sessions of psycopg, psycopg2 and SQLAlchemy: `with`, not `async with`."""

    @property
    def __enter__(self) -> Callable[..., Any]: ...


class ScopedSession(Protocol):
    """SQLAlchemy's; the asynchronous one is removed with `await`."""

    @property
    def remove(self) -> Callable[[], None]: ...


class DjangoConnection(Protocol):
    @property
    def in_atomic_block(self) -> bool: ...


SyncHandle = str | BlockingHandle | ScopedSession | DjangoConnection
"""The str is a Django alias."""
