"""
StatementLimit: the longest time that one statement of a connection may take, kept on the client's side.

The server's statement_timeout does not cover a COMMIT that waits for a synchronous standby, nor a network that lets
nothing through, and behind a pooler in transaction mode a session setting reaches other clients. So a thread watches
the running statement. At the limit it asks the server to cancel it: that ends a wait for a lock, a long query, and the
wait for a standby (the transaction is then committed on this server only). If the statement has not ended
CANCEL_SECONDS later, the thread shuts the socket down.

In both cases the statement raises QueryCanceled and the connection is closed, also if the server finished the statement
after all: the caller must not continue as if the statement had succeeded. Connecting has its own timeout.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

import psycopg

CANCEL_SECONDS = 2.0
LONGEST_CHECK_SECONDS = 1.0


class StatementLimit:
    """A context manager around each statement of one connection. Not reentrant; one statement at a time."""

    def __init__(self, connection: psycopg.Connection[Any], seconds: float) -> None:
        self._connection = connection
        self._seconds = seconds
        self._socket = socket.socket(fileno=os.dup(connection.fileno()))  # stays valid while the connection is closed
        self._lock = threading.Lock()
        self._deadline: float | None = None
        self._exceeded = False
        self._suspended = False
        threading.Thread(target=self._watch, name="statement-limit", daemon=True).start()

    def __enter__(self) -> None:
        if not self._suspended:
            self._deadline = time.monotonic() + self._seconds

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._deadline = None
        if self._exceeded:
            self._connection.close()
            raise psycopg.errors.QueryCanceled(
                f"a statement took longer than {self._seconds:g} s (statement_timeout_seconds): see "
                "pg_stat_activity for what it waits for, such as a lock, or SyncRep: a synchronous standby"
            ) from error

    @contextlib.contextmanager
    def suspended(self) -> Iterator[None]:
        """Without a limit inside the block."""
        self._suspended = True
        try:
            yield
        finally:
            self._suspended = False

    def _watch(self) -> None:
        pause = min(LONGEST_CHECK_SECONDS, self._seconds / 4)
        with self._socket:
            while not self._connection.closed and not self._exceeded:
                time.sleep(pause)
                with self._lock:
                    self._exceeded = self._deadline is not None and time.monotonic() > self._deadline
            if self._exceeded:
                self._end_statement()

    def _end_statement(self) -> None:
        # On a thread of its own: before libpq 17 a cancel request has no timeout.
        threading.Thread(target=self._cancel, name="statement-cancel", daemon=True).start()
        give_up_at = time.monotonic() + CANCEL_SECONDS
        while self._deadline is not None and time.monotonic() < give_up_at:
            time.sleep(0.02)
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def _cancel(self) -> None:
        with contextlib.suppress(psycopg.Error):
            self._connection.cancel_safe(timeout=CANCEL_SECONDS)


class LimitedConnection(psycopg.Connection[Any]):
    """A connection whose statements are limited once `limit` is set."""

    limit: StatementLimit | None = None


class LimitedCursor(psycopg.Cursor[Any]):
    def execute(self, query: Any, params: Any = None, **options: Any) -> Self:
        limit = self.connection.limit if isinstance(self.connection, LimitedConnection) else None
        with limit or contextlib.nullcontext():
            return super().execute(query, params, **options)


def suspended_limit(connection: psycopg.Connection[Any]) -> contextlib.AbstractContextManager[None]:
    """For a statement whose time has no bound, such as the creation of a slot."""
    if isinstance(connection, LimitedConnection) and connection.limit is not None:
        return connection.limit.suspended()
    return contextlib.nullcontext()
