"""
The guard: a small program that starts embedded servers for its parent process and cleans up after it.

It is run by path, as its own process, with the standard library only. It starts servers on request (one JSON object
per line on standard input, one answer per line on standard output) and guarantees that no process or file remains:

- when its standard input ends or its parent has ended for any reason (return, Ctrl-C, SIGKILL), it ends every server
  that it started, the last one first, and removes the directories it was given;
- when a server exits, it kills the server's remaining descendants (Linux: the guard is their subreaper), so that the
  server can be started again on the same port and data;
- if the guard itself is killed, Linux sends each server its stop signal (`PR_SET_PDEATHSIG`).

`PR_SET_PDEATHSIG` alone is not enough: it fires when the *thread* that forked ends, a change of user clears it, and it
removes no files. The guard has one thread and lives exactly as long as its parent.

It knows nothing about the servers, does not wait until a server is ready, and does not restart anything.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
PARENT_CHECK_SECONDS = 0.5  # a forked copy of the parent may keep the pipe open, so the pipe alone is not enough
END_DEADLINE_SECONDS = 8.0  # PostgreSQL gives its own children 5 s after SIGQUIT

Request = dict[str, Any]


def prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def parent_of_each_process() -> dict[int, int]:
    """Map of pid to parent pid, from /proc where there is one (slim containers have no `ps`)."""
    if not Path("/proc/self/stat").exists():
        listing = subprocess.run(["ps", "-Ao", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
        return {int(pid): int(parent) for pid, parent in (line.split() for line in listing.splitlines())}
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                status = (entry / "stat").read_text(errors="replace")
            except OSError:
                continue  # the process ended
            # The command may hold spaces and brackets; the fields after the last bracket are: state, parent pid, ...
            parents[int(entry.name)] = int(status.rpartition(")")[2].split()[1])
    return parents


def descendants_of(pid: int) -> Iterator[int]:
    """The process itself first, so that a stopped parent cannot fork while its children are being visited."""
    yield pid
    for child, parent in parent_of_each_process().items():
        if parent == pid:
            yield from descendants_of(child)


def send_signal(pid: int, number: int, whole_tree: bool = False) -> None:
    for target in descendants_of(pid) if whole_tree else (pid,):
        try:
            os.kill(target, number)
        except ProcessLookupError:
            continue


class Guard:
    def __init__(self, directories: list[str]) -> None:
        self.directories = directories
        self.stop_signals: dict[int, int] = {}  # running servers, in the order of their start
        self.exit_codes: dict[int, int] = {}

    def start(self, request: Request) -> Request:
        guard_pid = os.getpid()
        log = os.open(request["log_file"], os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        pid = os.fork()
        if pid == 0:
            try:
                self._become_server(request, log, guard_pid)
            except Exception as error:  # the forked child must never continue as a guard
                os.write(log, f"cannot run {request['command'][0]}: {error}\n".encode())
            os._exit(127)
        os.close(log)
        self.stop_signals[pid] = request["stop_signal"]
        return {"pid": pid}

    def _become_server(self, request: Request, log: int, guard_pid: int) -> None:
        null = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((null, 0), (log, 1), (log, 2)):
            os.dup2(source, target)
        os.setpgid(0, 0)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        if request["user"] is not None:
            uid, gid = request["user"]
            os.setgroups([])
            os.setgid(gid)
            os.setuid(uid)
        prctl(PR_SET_PDEATHSIG, request["stop_signal"])  # after setuid, which clears it
        if os.getppid() != guard_pid:
            return  # the guard died before prctl took effect
        os.chdir(request["directory"])
        os.execve(request["command"][0], request["command"], request["environment"])  # noqa: S606 - no shell

    def status(self, request: Request) -> Request:
        self.reap()
        return {"exit_code": self.exit_codes.get(request["pid"])}

    def forward_signal(self, request: Request) -> Request:
        if request["pid"] in self.stop_signals:
            send_signal(request["pid"], request["signal"], request["whole_tree"])
        return {}

    def reap(self) -> None:
        """Collect ended processes. After a server has ended, kill its orphans: they hold its port, files and memory."""
        if self._collect():
            while orphans := self._orphans():
                for pid in orphans:
                    send_signal(pid, signal.SIGKILL, whole_tree=True)
                time.sleep(0.002)
                self._collect()

    def _collect(self) -> bool:
        server_ended = False
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return server_ended
            if pid == 0:
                return server_ended
            if self.stop_signals.pop(pid, None) is not None:
                self.exit_codes[pid] = os.waitstatus_to_exitcode(status)
                server_ended = True

    def _orphans(self) -> set[int]:
        children = {pid for pid, parent in parent_of_each_process().items() if parent == os.getpid()}
        return children - set(self.stop_signals)

    def end_everything(self) -> None:
        for pid, stop_signal in reversed(list(self.stop_signals.items())):
            send_signal(pid, stop_signal)
            send_signal(pid, signal.SIGCONT, whole_tree=True)  # a suspended server would not see the signal
            deadline = time.monotonic() + END_DEADLINE_SECONDS
            while pid in self.stop_signals:
                if time.monotonic() > deadline:
                    send_signal(pid, signal.SIGKILL, whole_tree=True)
                time.sleep(0.002)
                self.reap()
        for directory in self.directories:
            shutil.rmtree(directory, ignore_errors=True)


def requests_from(stream: int, parent_pid: int) -> Iterator[Request]:
    """Requests until the stream ends, the parent has ended or the guard receives SIGTERM."""
    buffered = b""
    while os.getppid() == parent_pid:
        readable, _, _ = select.select([stream], [], [], PARENT_CHECK_SECONDS)
        if not readable:
            continue
        received = os.read(stream, 65536)
        if not received:
            return
        *lines, buffered = (buffered + received).split(b"\n")
        yield from (json.loads(line) for line in lines)


def main() -> None:
    parent_pid, *directories = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then closes the pipe
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    guard = Guard(directories)
    operations = {"start": guard.start, "status": guard.status, "signal": guard.forward_signal}
    try:
        for request in requests_from(sys.stdin.fileno(), int(parent_pid)):
            try:
                answer = operations[request["operation"]](request)
            except Exception as error:  # reported to the parent, which raises it
                answer = {"error": str(error)}
            os.write(sys.stdout.fileno(), json.dumps({**answer, "id": request["id"]}).encode() + b"\n")
    except BrokenPipeError:
        pass  # the parent ended before it read the answer
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        guard.end_everything()


if __name__ == "__main__":
    main()
