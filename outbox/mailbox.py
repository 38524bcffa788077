"""A queue between two threads whose reader can wait for it in a select(), together with sockets."""

from __future__ import annotations

import contextlib
import select
import socket
from collections import deque
from collections.abc import Iterable
from typing import Generic, TypeVar

T = TypeVar("T")


class Mailbox(Generic[T]):
    """Many writers, one reader. A put wakes the reader; puts between two looks of the reader cost one wake-up."""

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._woken = False

    def put(self, items: Iterable[T]) -> None:
        self._items.extend(items)
        if not self._woken:
            # A full pipe wakes just as well; a closed one has no reader left to wake.
            with contextlib.suppress(OSError):
                self._writer.send(b"\0")
            # Only now: a reader that came in between would find the flag but not the byte, and the byte would stay,
            # and keep the mailbox readable.
            self._woken = True

    def take(self, limit: int | None = None) -> list[T]:
        """What is there, at most `limit` of it; never waits. What is left keeps the mailbox readable."""
        # The flag falls before the items are taken: a put in between wakes once too often, never once too few.
        if self._woken:
            self._woken = False
            with contextlib.suppress(OSError):
                self._reader.recv(4096)
        count = len(self._items) if limit is None else min(limit, len(self._items))
        taken = [self._items.popleft() for _ in range(count)]
        if self._items:
            self.put(())
        return taken

    def wait(self, timeout_seconds: float) -> bool:
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
