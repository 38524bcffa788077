"""
Output of the commands: tables and fields for people, JSON for programs, a progress bar on a terminal.

Everything printed goes through outrider.telemetry.printable, and rich's markup has no effect. Results go to standard
output, questions and progress to standard error.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import click

from outrider.errors import OutboxError
from outrider.telemetry.printable import printable, printable_json

UNWRAPPED_WIDTH = 100_000
"""Width of a table in a file or a pipe, so that its lines are not wrapped."""


def print_records(columns: Mapping[str, str], records: Iterable[Mapping[str, Any]], *, as_json: bool) -> None:
    """A table with these columns (heading: field); or all fields as JSON, one document per line."""
    if as_json:
        for record in records:
            print_json(record)
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    if not console.is_terminal:
        console = Console(width=UNWRAPPED_WIDTH)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in columns:
        table.add_column(heading, overflow="fold")
    for record in records:
        table.add_row(*(Text(printable(record[field])) for field in columns.values()))
    console.print(table)


def print_fields(fields: Mapping[str, object]) -> None:
    """One line per field; a payload keeps its line breaks."""
    width = max(map(len, fields))
    for name, value in fields.items():
        first, *more = str(value).split("\n") if name == "payload" else [value]
        print_line(f"{name:<{width}}  {printable(first)}")
        for line in more:
            print_line(f"{'':<{width}}  {line}")


def print_line(text: str, *, end: bool = True) -> None:
    click.echo(printable(text), nl=end)


def print_result(lines: Iterable[str], result: Mapping[str, object], *, missing: int, as_json: bool) -> None:
    """What a command did to the selected messages. OutboxError if `missing` of the given ids were not among them."""
    if as_json:
        print_json({**result, "missing": missing})
    else:
        for line in lines:
            print_line(line)
    if missing:
        raise OutboxError(f"{missing} of the given ids are not among the selected messages")


def print_json(value: Mapping[str, Any]) -> None:
    """One document on one line."""
    click.echo(printable_json(value, _as_json))


def _as_json(value: object) -> str:
    return value.astimezone(UTC).isoformat() if isinstance(value, datetime) else str(value)


@contextmanager
def progress_bar(what: str, total: Callable[[], int]) -> Iterator[Callable[[int], None] | None]:
    """A function to call with the size of each batch; None if standard error is no terminal (`total` is not called)."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=total())
        yield lambda count: progress.advance(task, count)


def confirm(question: Callable[[], str], *, yes: bool) -> None:
    """Ask on the terminal, and abort unless the answer is yes. Does not ask with --yes."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError("this command asks for confirmation, and standard input is no terminal: give --yes")
    click.confirm(printable(question()), abort=True, err=True)
