"""
EmbeddedServer: what all embedded servers have in common: a directory, a port, a process.

It is a context manager: entering starts the server, leaving ends it and removes its files. In between, `stop`, `kill`,
`start` and `restart` keep the port and the data; `suspend` and `resume` stop and continue all processes of the server,
so that connections stay open without an answer.

All files are in one directory under `base_dir` (default: the system's temporary directory). Processes and files are
removed when the server is closed or the process that uses it ends, even by SIGKILL. Only 127.0.0.1 is used.
"""

from __future__ import annotations

import os
import signal
import tempfile
from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar, Self

from outrider.embedded.process import EmbeddedServerError, ProcessGuard, ServerProcess, UserIds, free_port


class EmbeddedServer(ABC):
    name: ClassVar[str]
    stop_signal: ClassVar[signal.Signals]  # requests an orderly stop
    discard_signal: ClassVar[signal.Signals] = signal.SIGKILL  # the fastest end, for data that is not needed any more
    start_deadline_seconds: ClassVar[float] = 30.0
    stop_deadline_seconds: ClassVar[float] = 30.0

    def __init__(self, *, base_dir: Path | None = None, user: UserIds | None = None) -> None:
        self.port = free_port()
        self.user = user
        self.directory = Path(tempfile.mkdtemp(prefix=f"outbox-{self.name}-", dir=base_dir)).resolve()
        if user is not None:
            self.directory.chmod(0o711)  # the server's user must reach its own files
        self.log_file = self.directory / "server.log"
        self.guard = ProcessGuard([self.directory])
        self.process: ServerProcess | None = None

    @abstractmethod
    def _launch(self) -> ServerProcess:
        """Start the process without waiting for it."""

    @abstractmethod
    def _is_ready(self) -> bool:
        """Whether the server accepts clients now."""

    @property
    def pid(self) -> int:
        """The pid of the running server."""
        return self._running().pid

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.exit_code is None

    def log(self) -> str:
        """The server's log so far."""
        return self.log_file.read_text(errors="replace") if self.log_file.exists() else ""

    def start(self) -> None:
        """Start on the same port and data as before, and wait until clients are accepted."""
        if self.is_running:
            raise EmbeddedServerError(f"{self.name} is already running (pid {self.pid})")
        self.process = self._launch()
        self.process.wait_until_ready(self._is_ready, self.start_deadline_seconds)

    def is_ready_within(self, seconds: float) -> bool:
        """Whether the running server accepts clients within this time."""
        try:
            self._running().wait_until_ready(self._is_ready, seconds)
        except EmbeddedServerError:
            return False
        return True

    def stop(self) -> None:
        """Stop in an orderly way. Stopping a stopped server is not an error."""
        self._end(self.stop_signal)

    def kill(self) -> None:
        """Crash the server with SIGKILL, and wait until all its processes have ended."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        self.stop()
        self.start()

    def suspend(self) -> None:
        """Stop every process of the server with SIGSTOP."""
        self._running().send_signal(signal.SIGSTOP, whole_tree=True)

    def resume(self) -> None:
        self._running().send_signal(signal.SIGCONT, whole_tree=True)

    def close(self) -> None:
        """End the server and remove its files. Closing twice is not an error."""
        self.process = None
        self.guard.close()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _running(self) -> ServerProcess:
        if self.process is None:
            raise EmbeddedServerError(f"{self.name} is not running")
        return self.process

    def _end(self, number: signal.Signals) -> None:
        if self.process is not None:
            self.process.end(number, self.stop_deadline_seconds)
            self.process = None

    def _launch_with(self, command: list[str], environment: dict[str, str] | None = None) -> ServerProcess:
        return self.guard.start(
            command,
            directory=self.directory,
            environment={**os.environ, **(environment or {})},
            log_file=self.log_file,
            stop_signal=self.discard_signal,
            user=self.user,
        )
