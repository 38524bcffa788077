"""
One run: the measurements one after the other, none of which can lose the results of another.

A measurement that fails, finds its peer missing or takes longer than its scale allows leaves its results null, with the
reason as their note. The results so far are written after each, so that an interrupted run leaves what it has.
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
from bench.peer_environment import PeerMissing
from bench.scale import Scale
from bench.stage import BenchmarkError, Stage

Measure = Callable[[Stage, Scale, Figures], None]


@dataclass(frozen=True)
class Part:
    name: str
    measure: Measure
    keys: tuple[str, ...]
    prepare: Callable[[], object] = lambda: None
    """Installs a peer, where there is one: that takes as long as it takes."""


def run_parts(
    parts: Iterable[Part], stage: Stage, scale: Scale, figures: Figures, console: Console, results: Path
) -> bool:
    """False if Ctrl-C ended it."""
    machine = figures.raw.setdefault("machine", {})
    seconds = figures.raw.setdefault("seconds", {})
    for part in parts:
        started = time.monotonic()
        interrupted = False
        try:
            part.prepare()
            started = time.monotonic()
            with limited(scale.part_seconds):
                stage.start()
                part.measure(stage, scale, figures)
        except KeyboardInterrupt:
            interrupted = True
            _give_up(part, figures, "interrupted")
        except PeerMissing as missing:
            console.print(f"{part.name}: {missing}", style="yellow", markup=False)
            _give_up(part, figures, str(missing))
        except Exception as error:
            console.print_exception(max_frames=4)
            _give_up(part, figures, f"failed: {error}")
        seconds[part.name] = round(time.monotonic() - started, 1)
        machine["load_at_end"] = load()
        figures.write(results)
        console.print(f"{part.name}: {seconds[part.name]:.0f} s", style="dim")
        if interrupted:
            return False
    return True


def _give_up(part: Part, figures: Figures, reason: str) -> None:
    for key in part.keys:
        figures.missing(key, reason.partition("\n")[0])


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """BenchmarkError in the main thread if this takes longer; what it has begun is then cleaned up as ever."""

    def expire(_number: int, _frame: FrameType | None) -> None:
        raise BenchmarkError(f"given up after {seconds:g} s")

    previous = signal.signal(signal.SIGALRM, expire)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
