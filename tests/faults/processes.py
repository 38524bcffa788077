"""
The processes of a run, each under a name, restarted when they end, as a supervisor would do it.

A `SupervisedProcess` is one part (a relay, a scheduler, a consumer, a producer); each start of it is a `ProcessRun`
with its own log file. A thread restarts ended processes and samples the memory of running ones. Faults send signals
and restart processes; `pause_supervision` keeps the thread from restarting a process meanwhile.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from outrider.embedded.process import ProcessGuard
from tests.faults.history import Memory
from tests.fixtures.services import ROOT, Service

WATCH_SECONDS = 0.5
RESTART_SECONDS = 0.3
STOP_SECONDS = 30.0
HANDLES_SIGNALS_AFTER_SECONDS = 10.0
SHIFTED_CLOCK = Path(__file__).with_name("shifted_clock")
WARM_UP_SECONDS = 10.0
MEMORY_CHECK_AFTER_SECONDS = 30.0
PAGE_MIB = os.sysconf("SC_PAGE_SIZE") / 2**20


@dataclass
class ProcessRun:
    """One start of a supervised process, until its end."""

    service: Service
    began: float
    shifted_seconds: int
    resident: list[tuple[float, float]] = field(default_factory=list)
    """Pairs of seconds since the start and MiB."""

    def sample(self) -> None:
        try:
            pages = int(Path(f"/proc/{self.service.pid}/statm").read_text().split()[1])
        except (OSError, IndexError):
            return  # it has ended, or this system has no /proc
        self.resident.append((time.monotonic() - self.began, pages * PAGE_MIB))

    def memory(self) -> Memory | None:
        """None if it did not run long enough."""
        early = [mib for age, mib in self.resident if WARM_UP_SECONDS <= age <= 2 * WARM_UP_SECONDS]
        if not early or self.resident[-1][0] < MEMORY_CHECK_AFTER_SECONDS:
            return None
        age, final = self.resident[-1]
        return Memory(self.service.name, age, median(early), final, max(mib for _, mib in self.resident))


class SupervisedProcess:
    """One named process. In its arguments `{run}` stands for the number of the start, from 0."""

    def __init__(
        self,
        name: str,
        module: str,
        arguments: Sequence[str] = (),
        *,
        environment: Mapping[str, str],
        guard: ProcessGuard,
        logs: Path,
    ) -> None:
        self.name = name
        self.runs: list[ProcessRun] = []
        self.bad_exits: list[str] = []
        self._module = module
        self._arguments = arguments
        self._environment = environment
        self._guard = guard
        self._logs = logs
        self._lock = threading.RLock()
        self._supervised = True

    @property
    def service(self) -> Service:
        return self.runs[-1].service

    @property
    def is_running(self) -> bool:
        return bool(self.runs) and self.service.is_running

    def start(self, *, shifted_seconds: int = 0) -> None:
        """Start it, with a wall clock that is wrong by `shifted_seconds`."""
        number = len(self.runs)
        search_path = [str(ROOT)]
        clock = {}
        if shifted_seconds:
            search_path.insert(0, str(SHIFTED_CLOCK))
            clock["FAULTS_CLOCK_SHIFT_SECONDS"] = str(shifted_seconds)
        environment = {**os.environ, **self._environment, **clock, "PYTHONUNBUFFERED": "1"}
        process = self._guard.start(
            [sys.executable, "-m", self._module, *(each.replace("{run}", str(number)) for each in self._arguments)],
            directory=ROOT,
            environment={**environment, "PYTHONPATH": os.pathsep.join(search_path)},
            log_file=self._logs / f"{self.name}-{number}.log",
            stop_signal=signal.SIGKILL,
        )
        self.runs.append(ProcessRun(Service(f"{self.name}-{number}", process), time.monotonic(), shifted_seconds))

    def pause_supervision(self) -> None:
        """Do not restart it until `resume_supervision`."""
        with self._lock:
            self._supervised = False

    def resume_supervision(self) -> None:
        """Start it if it does not run, and restart it from now on."""
        with self._lock:
            if not self.is_running:
                self.start()
            self._supervised = True

    def kill(self) -> None:
        if self.is_running:
            self.service.kill()

    def stop(self) -> None:
        """Send SIGTERM and wait for the end. Does nothing if it does not run."""
        if self.is_running:
            self.send_sigterm()
            self.wait_for_stop()

    def send_sigterm(self) -> None:
        if self.is_running:
            self.service.signal(signal.SIGTERM)

    def wait_for_stop(self) -> None:
        """Wait for the end after SIGTERM. Records an exit code other than 0 and a process that does not end."""
        try:
            code = self.service.wait(STOP_SECONDS)
        except AssertionError:
            self.bad_exits.append(f"{self.service.name} still ran {STOP_SECONDS:g} s after SIGTERM")
            self.service.kill()
        else:
            # A process that has just been started may not have installed its signal handler yet.
            if code != 0 and time.monotonic() - self.runs[-1].began > HANDLES_SIGNALS_AFTER_SECONDS:
                self.bad_exits.append(f"{self.service.name} ended with {code} after SIGTERM")

    def watch(self) -> None:
        """Restart it if it has ended; otherwise sample its memory."""
        with self._lock:
            if not self._supervised or not self.runs:
                return
            if self.is_running:
                self.runs[-1].sample()
            elif time.monotonic() - self.runs[-1].began > RESTART_SECONDS:
                self.start()


class ProcessGroup:
    """All processes of a run, and the thread that supervises them."""

    def __init__(self, processes: Sequence[SupervisedProcess]) -> None:
        self._processes = processes
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="supervisor", daemon=True)

    def __iter__(self) -> Iterator[SupervisedProcess]:
        return iter(self._processes)

    def named(self, *prefixes: str) -> list[SupervisedProcess]:
        return [process for process in self if process.name.startswith(prefixes)]

    def start(self) -> None:
        for process in self:
            process.start()
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        self._thread.join()

    def runs(self) -> list[ProcessRun]:
        return [run for process in self for run in process.runs]

    def _watch(self) -> None:
        while not self._closing.wait(WATCH_SECONDS):
            for process in self:
                process.watch()
