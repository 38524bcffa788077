"""
One run: the measurements one after the other; a failure of one does not affect the results of the others.

A measurement that fails, lacks its peer or takes longer than its scale allows leaves its results null, with the reason
as a note. The results are written after each measurement, so that an interrupted run keeps them.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from rich.console import Console

from bench.figures import Figures
from bench.machine import load
from bench.peer_venv import PeerUnavailable
from bench.scale import Scale
from bench.servers import BenchmarkError, BenchServers

Measure = Callable[[BenchServers, Scale, Figures], None]


@dataclass(frozen=True)
class Part:
    name: str
    measure: Measure
    keys: tuple[str, ...]
    prepare: Callable[[], object] = lambda: None
    """Installs a peer, if the part has one; not limited in time."""


def run_parts(
    parts: Iterable[Part], servers: BenchServers, scale: Scale, figures: Figures, console: Console, results: Path
) -> bool:
    """Run all parts. False if Ctrl-C ended the run."""
    machine = figures.raw.setdefault("machine", {})
    seconds = figures.raw.setdefault("seconds", {})
    for part in parts:
        started = time.monotonic()
        interrupted = False
        try:
            part.prepare()
            started = time.monotonic()
            with time_limit(scale.part_seconds):
                servers.start()
                part.measure(servers, scale, figures)
        except KeyboardInterrupt:
            interrupted = True
            _record_missing(part, figures, "interrupted")
        except PeerUnavailable as missing:
            console.print(f"{part.name}: {missing}", style="yellow", markup=False)
            _record_missing(part, figures, str(missing))
        except Exception as error:
            console.print_exception(max_frames=4)
            _record_missing(part, figures, f"failed: {error}")
        seconds[part.name] = round(time.monotonic() - started, 1)
        machine["load_at_end"] = load()
        figures.write(results)
        console.print(f"{part.name}: {seconds[part.name]:.0f} s", style="dim")
        if interrupted:
            return False
    return True


def _record_missing(part: Part, figures: Figures, reason: str) -> None:
    for key in part.keys:
        figures.missing(key, reason.partition("\n")[0])


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise BenchmarkError in the main thread after this time; context managers clean up as usual."""

    def expire(_number: int, _frame: FrameType | None) -> None:
        raise BenchmarkError(f"stopped after {seconds:g} s")

    previous = signal.signal(signal.SIGALRM, expire)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
