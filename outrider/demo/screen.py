"""
What the demo shows: a live picture on a terminal, a line a second elsewhere, and the summary at the end.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from outrider.demo.tally import Figures

if TYPE_CHECKING:
    from outrider.demo.scenario import DemoResult

BARS = "▁▂▃▄▅▆▇█"
LINE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class View:
    """One look at the demo."""

    elapsed_seconds: float
    act: str
    figures: Figures
    waiting: int


class Screen(Protocol):
    def say(self, text: str) -> None:
        """Something happened."""

    def show(self, view: View) -> None:
        """This is how it stands."""


class LiveScreen(AbstractContextManager["LiveScreen"]):
    """A picture that changes in place."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, refresh_per_second=10, transient=True)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._live.stop()

    def say(self, text: str) -> None:
        self._live.console.print(text)

    def show(self, view: View) -> None:
        self._live.update(_picture(view))


class LineScreen(AbstractContextManager["LineScreen"]):
    """A line a second, and one for every event."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._act = ""
        self._due = 0.0

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        return None

    def say(self, text: str) -> None:
        self._console.print(text, highlight=False, soft_wrap=True)

    def show(self, view: View) -> None:
        now = time.monotonic()
        if view.act == self._act and now < self._due:
            return
        if view.act != self._act:
            self._act = view.act
            self.say(f"{view.elapsed_seconds:5.1f} s  {view.act}")
        self._due = now + LINE_SECONDS
        figures = view.figures
        self.say(
            f"{view.elapsed_seconds:5.1f} s  committed {figures.committed}  delivered {figures.delivered}  "
            f"pending {view.waiting}  p50 {milliseconds(figures.p50_ms)}  p99 {milliseconds(figures.p99_ms)}"
        )


def print_summary(console: Console, verdict: DemoResult) -> None:
    figures = verdict.figures
    lost = verdict.orders - figures.delivered
    rows = [
        ("committed", str(verdict.orders), "orders, each with its message in the same transaction"),
        ("delivered", str(figures.delivered), "= committed" if not lost else f"{lost} are missing"),
        ("duplicates", str(figures.duplicates), "delivery is at least once; the message_id tells them apart"),
        (
            "rolled back",
            str(figures.rolled_back),
            f"{figures.leaked} of them were sent" if figures.leaked else "nothing of them was sent",
        ),
        (
            "latency",
            f"p50 {milliseconds(figures.p50_ms)}, p99 {milliseconds(figures.p99_ms)}",
            "from INSERT to consumer while the broker was up",
        ),
        (
            "outage",
            f"{figures.outage_seconds:.1f} s",
            f"{figures.outage_messages} messages waited, the longest for {milliseconds(figures.outage_max_ms)}",
        ),
    ]
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    table.add_column(justify="right")
    table.add_column(style="dim")
    for row in rows:
        table.add_row(*row)
    console.print(table)
    if verdict.kept:
        console.print("committed = delivered: nothing was lost", style="bold green")
    else:
        console.print("committed and delivered differ: this is a bug, please report it", style="bold red")


def sparkline(values: Sequence[int]) -> str:
    """One bar per value; a blank for none at all, so that an outage is a gap."""
    highest = max(values, default=0)
    return "".join(" " if value == 0 else BARS[(value * len(BARS) - 1) // highest] for value in values)


def milliseconds(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value / 1000:.1f} s" if value >= 1000 else f"{value:.1f} ms"


def _picture(view: View) -> RenderableType:
    figures = view.figures
    table = Table.grid(padding=(0, 3))
    for _ in range(5):
        table.add_column(justify="right")
    table.add_row("committed", "delivered", "pending", "p50", "p99", style="dim")
    table.add_row(
        Text(str(figures.committed), style="bold"),
        Text(str(figures.delivered), style="bold green"),
        Text(str(view.waiting), style="bold yellow" if view.waiting > figures.committed // 50 else "bold"),
        milliseconds(figures.p50_ms),
        milliseconds(figures.p99_ms),
    )
    deliveries = Text.assemble(("deliveries  ", "dim"), (sparkline(figures.deliveries), "green"))
    act = Text(f"{view.elapsed_seconds:5.1f} s  {view.act}", style="red" if "dead" in view.act else "")
    return Panel(Group(table, deliveries, act), title="outrider demo", expand=False)
