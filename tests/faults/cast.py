"""
The cast: every process of a run, under a name, started again when it ends, as a supervisor would.

An `Actor` is one part (a relay, a scheduler, a consumer, a producer); each start of it is a `Life` with a log of its
own. A watching thread starts again what ended by itself, and samples the memory of what runs. Signals and restarts come
from the nemesis; `leave_ended` keeps the supervisor from interfering meanwhile.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from outrider.embedded.process import ProcessGuard
from tests.faults.history import Memory
from tests.fixtures.services import ROOT, Service

WATCH_SECONDS = 0.5
RESTART_SECONDS = 0.3
STOP_SECONDS = 30.0
LISTENS_AFTER_SECONDS = 10.0
SHIFTED_CLOCK = Path(__file__).with_name("shifted_clock")
SETTLING_SECONDS = 10.0
JUDGED_AFTER_SECONDS = 30.0
PAGE_MIB = os.sysconf("SC_PAGE_SIZE") / 2**20


@dataclass
class Life:
    """One process of an actor, from its start to its end."""

    service: Service
    began: float
    shifted_seconds: int
    resident: list[tuple[float, float]] = field(default_factory=list)
    """Seconds since its start, MiB."""

    def sample(self) -> None:
        try:
            pages = int(Path(f"/proc/{self.service.pid}/statm").read_text().split()[1])
        except (OSError, IndexError):
            return  # it has ended, or there is no /proc here
        self.resident.append((time.monotonic() - self.began, pages * PAGE_MIB))

    def memory(self) -> Memory | None:
        """None when it did not live for long enough."""
        settled = [mib for age, mib in self.resident if SETTLING_SECONDS <= age <= 2 * SETTLING_SECONDS]
        if not settled or self.resident[-1][0] < JUDGED_AFTER_SECONDS:
            return None
        age, final = self.resident[-1]
        return Memory(self.service.name, age, median(settled), final, max(mib for _, mib in self.resident))


class Actor:
    """One part of the cast. In its arguments `{life}` stands for the number of the start, from 0."""

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
        self.lives: list[Life] = []
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
        return self.lives[-1].service

    @property
    def is_running(self) -> bool:
        return bool(self.lives) and self.service.is_running

    def start(self, *, shifted_seconds: int = 0) -> None:
        """Start it, with a clock that is off by so much."""
        number = len(self.lives)
        search_path = [str(ROOT)]
        clock = {}
        if shifted_seconds:
            search_path.insert(0, str(SHIFTED_CLOCK))
            clock["FAULTS_CLOCK_SHIFT_SECONDS"] = str(shifted_seconds)
        environment = {**os.environ, **self._environment, **clock, "PYTHONUNBUFFERED": "1"}
        process = self._guard.start(
            [sys.executable, "-m", self._module, *(each.replace("{life}", str(number)) for each in self._arguments)],
            directory=ROOT,
            environment={**environment, "PYTHONPATH": os.pathsep.join(search_path)},
            log_file=self._logs / f"{self.name}-{number}.log",
            stop_signal=signal.SIGKILL,
        )
        self.lives.append(Life(Service(f"{self.name}-{number}", process), time.monotonic(), shifted_seconds))

    def leave_ended(self) -> None:
        """From now on it stays as it is."""
        with self._lock:
            self._supervised = False

    def return_to_life(self) -> None:
        with self._lock:
            if not self.is_running:
                self.start()
            self._supervised = True

    def kill(self) -> None:
        if self.is_running:
            self.service.kill()

    def stop(self) -> None:
        """SIGTERM, and its end. One that does not run is left as it is."""
        if self.is_running:
            self.ask_to_stop()
            self.see_stopped()

    def ask_to_stop(self) -> None:
        if self.is_running:
            self.service.signal(signal.SIGTERM)

    def see_stopped(self) -> None:
        """An exit code other than 0 is remembered, and so is a process that does not end."""
        try:
            code = self.service.wait(STOP_SECONDS)
        except AssertionError:
            self.bad_exits.append(f"{self.service.name} still ran {STOP_SECONDS:g} s after SIGTERM")
            self.service.kill()
        else:
            # One that has just been started does not listen to signals yet, or has nothing to end in order.
            if code != 0 and time.monotonic() - self.lives[-1].began > LISTENS_AFTER_SECONDS:
                self.bad_exits.append(f"{self.service.name} ended with {code} after SIGTERM")

    def watch(self) -> None:
        """Start it again if it ended by itself, a little later; sample its memory if not."""
        with self._lock:
            if not self._supervised or not self.lives:
                return
            if self.is_running:
                self.lives[-1].sample()
            elif time.monotonic() - self.lives[-1].began > RESTART_SECONDS:
                self.start()


class Cast:
    """All actors, and the thread that watches over them."""

    def __init__(self, actors: Sequence[Actor]) -> None:
        self.actors = {actor.name: actor for actor in actors}
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="supervisor", daemon=True)

    def __getitem__(self, name: str) -> Actor:
        return self.actors[name]

    def named(self, *prefixes: str) -> list[Actor]:
        return [actor for actor in self.actors.values() if actor.name.startswith(prefixes)]

    def start(self) -> None:
        for actor in self.actors.values():
            actor.start()
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        self._thread.join()

    def lives(self) -> list[Life]:
        return [life for actor in self.actors.values() for life in actor.lives]

    def _watch(self) -> None:
        while not self._closing.wait(WATCH_SECONDS):
            for actor in self.actors.values():
                actor.watch()
