"""The command behind `make faults`. Exit status: 0 no violation, 1 a violation, 2 wrong usage."""

from __future__ import annotations

import json
import random
import shutil
import sys
from pathlib import Path

import click

from tests.faults.checker import check
from tests.faults.report import figures, figures_text, violations_text
from tests.faults.run import FaultRun, Progress
from tests.fixtures.services import ROOT

RUNS = ROOT / ".run" / "faults"
QUIET_PROGRESS_SECONDS = 30.0


class ProgressLine:
    """One line that is overwritten on a terminal; elsewhere a line every half minute."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._next = 0.0

    def __call__(self, progress: Progress) -> None:
        text = (
            f"{progress.elapsed:4.0f} s  {progress.faults} faults, {progress.committed} committed, "
            f"{progress.delivered} delivered; {progress.phase}"
        )
        if self._terminal:
            width = shutil.get_terminal_size().columns - 1
            click.echo(f"\r{text[:width]:{width}}", nl=False, err=True)
        elif progress.elapsed >= self._next:
            self._next = progress.elapsed + QUIET_PROGRESS_SECONDS
            click.echo(text, err=True)

    def end(self) -> None:
        if self._terminal:
            click.echo(err=True)


@click.command("faults", context_settings={"max_content_width": 120})
@click.option(
    "--duration",
    default=300.0,
    show_default=True,
    help="how long faults are injected, in seconds",
    type=click.FloatRange(min=5, max=86_400),
)
@click.option("--seed", default=None, type=click.IntRange(min=1), help="repeats the choices of a run; default: random")
@click.option("--keep", is_flag=True, help="keep the logs also of a run without violations")
def main(duration: float, seed: int | None, keep: bool) -> None:
    """
    Kill, disconnect and restart services and servers while messages flow, then check that none was lost.

    Starts its own PostgreSQL and RabbitMQ. The figures go to standard output and to .run/faults/latest.json; the logs
    of a run with a violation are kept in .run/faults.
    """
    seed = seed or random.SystemRandom().randrange(1, 1_000_000)
    click.echo(f"SEED={seed} DURATION={duration:g}", err=True)
    directory = RUNS / str(seed)
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    line = ProgressLine()
    result = FaultRun(directory, seed=seed, seconds=duration, on_progress=line).run()
    line.end()
    violations = check(result.history)
    (RUNS / "latest.json").write_text(json.dumps(figures(result), indent=2) + "\n")
    click.echo(figures_text(result))
    if violations:
        click.echo(violations_text(result, violations))
    if violations or keep:
        click.echo(f"\nthe logs are in {_relative(directory)}")
    else:
        shutil.rmtree(directory)
    sys.exit(1 if violations else 0)


def _relative(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


if __name__ == "__main__":
    main()
