"""A queue between threads whose reader can wait for it in a select(), together with sockets."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from collections import deque
from collections.abc import Iterable
from typing import Generic, TypeVar

T = TypeVar("T")


class WakeableQueue(Generic[T]):
    """Many writers, one reader. A put wakes the reader; several puts before the next take cost one wake-up."""

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._woken = False  # whether there is a byte in the socket
        # Guards flag and byte together: a byte without the flag would wake the reader for ever, and the flag without
        # the byte would let it sleep although there are items.
        self._lock = threading.Lock()

    def put(self, items: Iterable[T]) -> None:
        with self._lock:
            self._items.extend(items)
            if not self._woken:
                self._woken = True
                # A full socket is readable anyway; a closed one has no reader.
                with contextlib.suppress(OSError):
                    self._writer.send(b"\0")

    def take(self, limit: int | None = None) -> list[T]:
        """Return at most `limit` items without waiting. The queue stays readable while items are left."""
        with self._lock:
            count = len(self._items) if limit is None else min(limit, len(self._items))
            taken = [self._items.popleft() for _ in range(count)]
            if self._woken and not self._items:
                self._woken = False
                with contextlib.suppress(OSError):
                    self._reader.recv(4096)
            return taken

    def wait(self, timeout_seconds: float) -> bool:
        """Wait for an item, or for put(()), up to the timeout; returns whether there are items."""
        if not self._items:
            select.select([self._reader], [], [], timeout_seconds)
        return bool(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def fileno(self) -> int:
        return self._reader.fileno()

    def close(self) -> None:
        self._reader.close()
        self._writer.close()
