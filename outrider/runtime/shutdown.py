"""
Shutdown: SIGTERM or SIGINT sets a flag that loops check; a second signal ends the process at once.

A loop can wait for the request with a timeout, or in a select() (fileno). No polling is needed.

With a limit, a process that has not stopped in time after the request is ended with status 1, whatever its threads wait
for: a database or broker that does not answer must not keep it alive.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import threading
from types import FrameType

from outrider.telemetry.logs import get_logger

FORCE_AFTER_SECONDS = 5.0
"""How much longer than shutdown_timeout_seconds a stop may take before the process is ended."""

log = get_logger(__name__)


class Shutdown:
    """A request to stop. As a context manager it handles the signals, and restores the old handlers at the end."""

    SIGNALS = (signal.SIGTERM, signal.SIGINT)

    def __init__(self, *, shutdown_timeout_seconds: float | None = None) -> None:
        """`shutdown_timeout_seconds`: what the service itself allows for its stop; None: no limit."""
        self._limit_seconds = (
            None if shutdown_timeout_seconds is None else shutdown_timeout_seconds + FORCE_AFTER_SECONDS
        )
        self._stopped = threading.Event()
        self._enforcer = threading.Thread(target=self._enforce, name="shutdown-limit", daemon=True)
        self._receiver, self._sender = socket.socketpair()
        self._sender.setblocking(False)
        self._previous: dict[signal.Signals, signal._HANDLER] = {}
        self.requested = False

    def __enter__(self) -> Shutdown:
        for number in self.SIGNALS:
            self._previous[number] = signal.signal(number, self._on_signal)
        if self._limit_seconds is not None:
            self._enforcer.start()
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous.clear()
        self._stopped.set()
        if self._limit_seconds is not None:
            self._sender.send(b"\0")  # ends the enforcer's wait
            self._enforcer.join()
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

    def _enforce(self) -> None:
        select.select([self._receiver], [], [])
        if not self._stopped.wait(self._limit_seconds):
            hint = "messages without a settlement fall due again; see the log above for what did not answer"
            log.error("shutdown_forced", after_seconds=self._limit_seconds, hint=hint)
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(1)
