"""
Start, watch and end server processes so that none of them outlives the process that started it.

`ProcessGuard` starts the guard program (`guard.py`) and sends it requests; `ServerProcess` is one server that it
started. The servers end with the process that created the guard, however that process ends.

A started server has its own process group, no input, and a log file for its output; root can run it as another user.
Every wait has a time limit. The caller says what to run and when it is ready. POSIX only; ending orphans of a killed
server and ending with a killed guard need Linux.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

# Below the ports that Linux and macOS use for outgoing connections (from 32768 and 49152 on): a server that is
# restarted must find its port free.
PORTS = range(10_000, 32_000)

POLL_SECONDS = 0.005


class EmbeddedServerError(RuntimeError):
    """An embedded server cannot be found, did not start, or did not end in time."""


class UserIds(NamedTuple):
    uid: int
    gid: int


def free_port() -> int:
    """A loopback port that is not in use now."""
    # SystemRandom: test plugins seed the shared generator identically in all parallel workers.
    for port in random.SystemRandom().sample(PORTS, 100):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise EmbeddedServerError(f"no free port found on 127.0.0.1 between {PORTS.start} and {PORTS.stop}")


def answers(port: int, request: bytes = b"", expected: bytes = b"") -> bool:
    """Whether a server on this loopback port accepts a connection and answers the request with these bytes."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=2) as connection:
            connection.sendall(request)
            return connection.recv(len(expected)) == expected
    except OSError:
        return False


def package_files(package: str, pattern: str) -> Iterator[Path]:
    """Files of an installed package, which is not imported. Yields nothing if it is not installed."""
    spec = importlib.util.find_spec(package)
    for location in (spec and spec.submodule_search_locations) or ():
        yield from Path(location).glob(pattern)


def run_to_end(command: Sequence[str], **options: Any) -> str:
    """Run a program and return what it prints. Raises EmbeddedServerError with its output if it fails."""
    run: subprocess.CompletedProcess[str] = subprocess.run(
        command, check=False, capture_output=True, text=True, **options
    )
    if run.returncode != 0:
        called = " ".join((Path(command[0]).name, *command[1:]))
        raise EmbeddedServerError(f"{called} failed:\n{run.stdout}{run.stderr}")
    return run.stdout


def unprivileged_user() -> UserIds | None:
    """The user as which root starts a server that refuses to run as root; None if this process is not root."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return UserIds(entry.pw_uid, entry.pw_gid)
    raise EmbeddedServerError("running as root, and there is no user 'postgres' or 'nobody' to run the server as")


def can_enter(path: Path, user: UserIds) -> bool:
    """Whether `user` may enter every directory down to `path`."""
    for directory in (path, *path.parents):
        status = directory.stat()
        shift = 6 if status.st_uid == user.uid else 3 if status.st_gid == user.gid else 0
        if not status.st_mode >> shift & 1:
            return False
    return True


class ProcessGuard:
    """Starts one guard program and sends it requests. `directories` are removed when it ends."""

    def __init__(self, directories: Sequence[Path] = ()) -> None:
        self.directories = tuple(directories)
        command = [sys.executable, "-I", "-S", str(Path(__file__).with_name("guard.py")), str(os.getpid())]
        self._lock = threading.Lock()
        self._last_id = 0
        self._program = subprocess.Popen(
            [*command, *map(str, directories)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
        )
        assert self._program.stdin is not None
        assert self._program.stdout is not None
        self._requests = self._program.stdin
        self._answers = self._program.stdout

    @property
    def pid(self) -> int:
        return self._program.pid

    def start(
        self,
        command: Sequence[str],
        *,
        directory: Path,
        environment: Mapping[str, str],
        log_file: Path,
        stop_signal: signal.Signals,
        user: UserIds | None = None,
    ) -> ServerProcess:
        """Start a server. After the end of this process it gets `stop_signal`, and SIGKILL if it does not end."""
        answer = self.request(
            operation="start",
            command=list(command),
            directory=str(directory),
            environment=dict(environment),
            log_file=str(log_file),
            stop_signal=int(stop_signal),
            user=user,
        )
        return ServerProcess(self, answer["pid"], log_file)

    def request(self, **request: Any) -> dict[str, Any]:
        with self._lock:
            self._last_id += 1
            try:
                self._requests.write(json.dumps({**request, "id": self._last_id}).encode() + b"\n")
                self._requests.flush()
                answer = self._read_answer(self._last_id)
            except (OSError, ValueError) as error:
                raise EmbeddedServerError(f"the guard process has ended, and its servers with it: {error}") from error
        if "error" in answer:
            raise EmbeddedServerError(answer["error"])
        return answer

    def _read_answer(self, request_id: int) -> dict[str, Any]:
        """Skip answers to earlier requests, whose wait was interrupted by Ctrl-C."""
        while line := self._answers.readline():
            answer: dict[str, Any] = json.loads(line)
            if answer["id"] == request_id:
                return answer
        raise BrokenPipeError("no answer")

    def close(self, timeout_seconds: float = 30.0) -> None:
        """End every server of this guard and remove the directories."""
        with self._lock:
            with contextlib.suppress(OSError):  # the guard was killed
                self._requests.close()
            try:
                self._program.wait(timeout_seconds)
            except subprocess.TimeoutExpired:
                self._program.kill()
                self._program.wait()
                raise EmbeddedServerError(f"embedded servers did not end within {timeout_seconds:g} s") from None
            finally:
                self._answers.close()
        for directory in self.directories:
            shutil.rmtree(directory, ignore_errors=True)  # in case the guard was killed


class ServerProcess:
    """One running server. It counts as ended when all its descendants have ended."""

    def __init__(self, guard: ProcessGuard, pid: int, log_file: Path) -> None:
        self.pid = pid
        self.log_file = log_file
        self._guard = guard
        self._exit_code: int | None = None

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative if a signal ended it."""
        if self._exit_code is None:
            self._exit_code = self._guard.request(operation="status", pid=self.pid)["exit_code"]
        return self._exit_code

    def send_signal(self, number: signal.Signals, *, whole_tree: bool = False) -> None:
        """Signal the server, or the server and all its descendants (PostgreSQL's backends have their own sessions)."""
        self._guard.request(operation="signal", pid=self.pid, signal=int(number), whole_tree=whole_tree)

    def wait(self, timeout_seconds: float) -> int:
        deadline = time.monotonic() + timeout_seconds
        while (code := self.exit_code) is None:
            if time.monotonic() > deadline:
                raise TimeoutError(f"process {self.pid} still runs after {timeout_seconds:g} s")
            time.sleep(POLL_SECONDS)
        return code

    def end(self, number: signal.Signals, timeout_seconds: float) -> int:
        """Send a signal, wait, and kill the server if it does not end in time."""
        self.send_signal(number)
        self.send_signal(signal.SIGCONT, whole_tree=True)  # a suspended server would not see the signal
        try:
            return self.wait(timeout_seconds)
        except TimeoutError:
            self.send_signal(signal.SIGKILL, whole_tree=True)
            return self.wait(timeout_seconds)

    def wait_until_ready(self, is_ready: Callable[[], bool], deadline_seconds: float) -> None:
        """Return once `is_ready()`. Raises EmbeddedServerError with the end of the log if it ended or is late."""
        deadline = time.monotonic() + deadline_seconds
        while not is_ready():
            if self.exit_code is not None:
                raise EmbeddedServerError(f"the server ended at start with code {self.exit_code}:\n{self.log_tail()}")
            if time.monotonic() > deadline:
                raise EmbeddedServerError(f"the server is not ready after {deadline_seconds:g} s:\n{self.log_tail()}")
            time.sleep(POLL_SECONDS)

    def log_tail(self, lines: int = 30) -> str:
        return "\n".join(self.log_file.read_text(errors="replace").splitlines()[-lines:])
