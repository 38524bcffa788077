"""
Shutdown: SIGTERM or SIGINT sets a flag that loops check; a second signal ends the process at once.

A loop can wait for the request with a timeout, or in a select() (fileno). No polling is needed.
"""

from __future__ import annotations

import os
import select
import signal
import socket
from types import FrameType


class Shutdown:
    """A request to stop. As a context manager it handles the signals, and restores the old handlers at the end."""

    SIGNALS = (signal.SIGTERM, signal.SIGINT)

    def __init__(self) -> None:
        self._receiver, self._sender = socket.socketpair()
        self._sender.setblocking(False)
        self._previous: dict[signal.Signals, signal._HANDLER] = {}
        self.requested = False

    def __enter__(self) -> Shutdown:
        for number in self.SIGNALS:
            self._previous[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous.clear()
        self._receiver.close()
        self._sender.close()

    def request(self) -> None:
        if not self.requested:
            self.requested = True
            self._sender.send(b"\0")

    def wait(self, seconds: float) -> bool:
        """Sleep until a request to stop, or until the time is over. Returns whether stop was requested."""
        if not self.requested and seconds > 0:
            select.select([self._receiver], [], [], seconds)
        return self.requested

    def fileno(self) -> int:
        """For select(): readable from the request on."""
        return self._receiver.fileno()

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self.requested:
            os._exit(128 + number)
        self.request()
