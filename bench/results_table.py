"""Print the results as a table."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from bench.figures import WANTED, Figures
from bench.scale import Scale


def print_table(console: Console, figures: Figures, scale: Scale) -> None:
    table = Table(title=f"benchmarks ({scale.name})")
    table.add_column("result", no_wrap=True)
    table.add_column("measured", justify="right")
    table.add_column("wanted", justify="right")
    table.add_column("note", overflow="fold")
    notes = figures.as_dict()["notes"]
    for key, (relation, limit) in WANTED.items():
        value = figures.values.get(key)
        style = {True: "green", False: "red", None: "dim"}[figures.is_as_wanted(key)]
        table.add_row(
            key,
            f"[{style}]{'-' if value is None else f'{value:g}'}[/]",
            f"{relation} {limit:g}",
            notes.get(key, ""),
        )
    console.print(table)
