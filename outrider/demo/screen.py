"""The output of the demo: a live display on a terminal, a line every second elsewhere, and the summary at the end."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

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
NEXT_STEPS = """
Next, with your own database and broker (OUTRIDER_DATABASE_URL, OUTRIDER_BROKER_URL):
  outrider setup                 creates the tables, the publication and the replication slot
  cdc-relay, retry-scheduler     start the two services
  outbox.publish(connection, "order.placed", {"order": 42})
                                 in your transaction, with `from outrider import Outbox` and `outbox = Outbox(...)`
  outrider status                shows pending messages, dead letters and the services"""


@dataclass(frozen=True, slots=True)
class View:
    """The state of the demo at one moment."""

    elapsed_seconds: float
    phase: str
    broker_is_down: bool
    figures: Figures
    pending: int


class LiveScreen(AbstractContextManager["LiveScreen"]):
    """A display that is redrawn in place."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, refresh_per_second=10, transient=True)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def say(self, text: str) -> None:
        self._live.console.print(text)

    def show(self, view: View) -> None:
        self._live.update(_render(view))


class LineScreen(AbstractContextManager["LineScreen"]):
    """A line every second, and one for every new phase."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._phase = ""
        self._due = 0.0

    def __exit__(self, *_: object) -> None:
        return None

    def say(self, text: str) -> None:
        self._console.print(text, highlight=False, soft_wrap=True)

    def show(self, view: View) -> None:
        now = time.monotonic()
        if view.phase == self._phase and now < self._due:
            return
        if view.phase != self._phase:
            self._phase = view.phase
            self.say(f"{view.elapsed_seconds:5.1f} s  {view.phase}")
        self._due = now + LINE_SECONDS
        figures = view.figures
        self.say(
            f"{view.elapsed_seconds:5.1f} s  committed {figures.committed}  delivered {figures.delivered}  "
            f"pending {view.pending}  p50 {milliseconds(figures.p50_ms)}  p99 {milliseconds(figures.p99_ms)}"
        )


Screen = LiveScreen | LineScreen


def print_summary(console: Console, result: DemoResult) -> None:
    """Print what happened and what to do next."""
    figures = result.figures
    lost = result.orders - figures.delivered
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    table.add_column(justify="right")
    table.add_column(style="dim")
    table.add_row("committed", str(result.orders), "orders, each with its message in the same transaction")
    delivered = f"{lost} are missing" if lost else "every committed message"
    table.add_row("delivered", str(figures.delivered), delivered)
    duplicates = "delivery is at least once; consumers recognise duplicates by message_id"
    table.add_row("duplicates", str(figures.duplicates), duplicates)
    rolled_back = "transactions; none of their messages was delivered"
    if figures.rolled_back_but_delivered:
        rolled_back = f"{figures.rolled_back_but_delivered} of their messages were delivered: a bug"
    table.add_row("rolled back", str(figures.rolled_back), rolled_back)
    latency = f"p50 {milliseconds(figures.p50_ms)}, p99 {milliseconds(figures.p99_ms)}"
    table.add_row("latency", latency, "from INSERT to consumer while the broker was up")
    table.add_row(
        "outage",
        f"{figures.outage_seconds:.1f} s",
        f"the broker was killed; {figures.outage_messages} messages were delayed, "
        f"the longest by {milliseconds(figures.outage_max_ms)}",
    )
    console.print(table)
    if result.is_lossless:
        console.print("committed = delivered: nothing was lost", style="bold green")
        console.print(NEXT_STEPS, highlight=False, soft_wrap=True)
    else:
        console.print("committed and delivered differ: this is a bug, please report it", style="bold red")


def sparkline(values: Sequence[int]) -> str:
    """One bar per value; a blank for 0, so that an outage is visible as a gap."""
    highest = max(values, default=0)
    return "".join(" " if value == 0 else BARS[(value * len(BARS) - 1) // highest] for value in values)


def milliseconds(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value / 1000:.1f} s" if value >= 1000 else f"{value:.1f} ms"


def _render(view: View) -> RenderableType:
    figures = view.figures
    table = Table.grid(padding=(0, 3))
    for _ in range(5):
        table.add_column(justify="right")
    table.add_row("committed", "delivered", "pending", "p50", "p99", style="dim")
    table.add_row(
        Text(str(figures.committed), style="bold"),
        Text(str(figures.delivered), style="bold green"),
        Text(str(view.pending), style="bold yellow" if view.pending > figures.committed // 50 else "bold"),
        milliseconds(figures.p50_ms),
        milliseconds(figures.p99_ms),
    )
    deliveries = Text.assemble(("deliveries  ", "dim"), (sparkline(figures.deliveries), "green"))
    phase = Text(f"{view.elapsed_seconds:5.1f} s  {view.phase}", style="red" if view.broker_is_down else "")
    return Panel(Group(table, deliveries, phase), title="outrider demo", expand=False)
