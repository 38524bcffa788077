"""
Handles: the connections, cursors and sessions that an application can pass, and an adapter for each kind.

A handle is recognised by the module and name of its class; a str is a Django alias. So nothing needs to be imported to
recognise it. The module of an adapter is imported when its kind of handle is first used; by then the application has
imported the library behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from importlib import import_module
from typing import Any, Protocol

from outrider.producer.statement import Parameters, Statement

Guard = Callable[[bool], None]
"""Called by an adapter before it writes, with whether the handle is inside a transaction. Raises to refuse."""


def no_guard(in_transaction: bool) -> None:
    """A guard that allows statements outside a transaction."""


ACCEPTED = (
    "a psycopg Connection, AsyncConnection, Cursor or AsyncCursor",
    "a SQLAlchemy Session, Connection, AsyncSession or AsyncConnection",
    "a Django database alias such as 'default', or a Django database connection",
    "an asyncpg Connection",
    "a psycopg2 connection or cursor",
)

# Top-level package of the handle's class -> the names that are handles -> the adapter.
_ADAPTERS = {
    "asyncpg": {"Connection": "asyncpg.ADAPTER", "PoolConnectionProxy": "asyncpg.ADAPTER"},
    "builtins": {"str": "django.ADAPTER"},
    "django": {"BaseDatabaseWrapper": "django.ADAPTER", "ConnectionProxy": "django.ADAPTER"},
    "psycopg": {
        "Connection": "psycopg3.SYNC",
        "Cursor": "psycopg3.SYNC",
        "AsyncConnection": "psycopg3.ASYNC",
        "AsyncCursor": "psycopg3.ASYNC",
    },
    "psycopg2": {"connection": "psycopg2.ADAPTER", "cursor": "psycopg2.ADAPTER"},
    "sqlalchemy": {
        "Connection": "sqlalchemy.SYNC",
        "Session": "sqlalchemy.SYNC",
        "scoped_session": "sqlalchemy.SYNC",
        "AsyncConnection": "sqlalchemy.ASYNC",
        "AsyncSession": "sqlalchemy.ASYNC",
        "async_scoped_session": "sqlalchemy.ASYNC",
    },
}


Copy = Callable[[Statement, Iterable[Sequence[Any]], Guard], Any]
"""Runs a binary COPY ... FROM STDIN with rows of str, bytes and None. Returns the number of rows, or an awaitable."""


class Adapter(Protocol):
    """How to run a statement on one kind of handle. An asynchronous adapter returns awaitables."""

    is_async: bool

    def in_transaction(self, handle: Any) -> bool:
        """Whether a statement that is run now can be rolled back. For synchronous handles only."""

    def execute(self, handle: Any, statement: Statement, parameters: Parameters, guard: Guard) -> Any:
        """Run a statement that writes. Returns the number of rows; -1 where it is not known yet."""

    def fetch(self, handle: Any, statement: Statement, parameters: Parameters, guard: Guard) -> Any:
        """Run a statement that returns rows. Returns them as tuples."""

    def copier(self, handle: Any) -> Copy | None:
        """A function that runs COPY on the handle; None where that is not possible."""


class StatementsOnly:
    """For adapters without COPY: the driver has none, or a layer above the driver would not see it."""

    def copier(self, handle: Any) -> Copy | None:  # noqa: ARG002
        return None


Rows = Sequence[tuple[Any, ...]]


def adapter_for(handle: object) -> Adapter:
    """The adapter of a handle; TypeError that lists what is accepted."""
    adapter = _adapter_for_class(type(handle))  # type: ignore[arg-type]  # classes are hashable
    if adapter is None:
        name = f"{type(handle).__module__}.{type(handle).__qualname__}"
        raise TypeError(f"{name} is not a handle; accepted are: " + "; ".join(ACCEPTED))
    return adapter


@cache
def _adapter_for_class(kind: type[Any]) -> Adapter | None:
    for ancestor in kind.__mro__:
        package = ancestor.__module__.partition(".")[0]
        if path := _ADAPTERS.get(package, {}).get(ancestor.__name__):
            module, _, name = path.partition(".")
            adapter: Adapter = getattr(import_module(f"outrider.producer.handles.{module}"), name)
            return adapter
    return None
