"""
Output of the commands: tables and fields for people, JSON for programs, a progress bar on a terminal.

Stored text is untrusted: control characters and text direction marks are escaped, and rich's markup has no effect. JSON
is printed as ASCII. Results go to standard output, questions and progress to standard error.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import click

from outrider.errors import OutboxError

UNWRAPPED_WIDTH = 100_000
"""Width of a table in a file or a pipe, so that its lines are not wrapped."""


def printable(value: object) -> str:
    """The value as one line of text without control characters."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    text = json.dumps(value, ensure_ascii=False, default=str) if isinstance(value, dict | list) else str(value)
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


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
        click.echo(f"{name:<{width}}  {printable(first)}")
        for line in more:
            click.echo(f"{'':<{width}}  {printable(line)}")


def print_result(text: str, counts: Mapping[str, int], *, missing: int, as_json: bool) -> None:
    """What a command did to the selected messages. OutboxError if `missing` of the given ids were not among them."""
    if as_json:
        print_json({**counts, "missing": missing})
    else:
        click.echo(text)
    if missing:
        raise OutboxError(f"{missing} of the given ids are not among the selected messages")


def print_json(value: Mapping[str, Any]) -> None:
    """One document on one line."""
    click.echo(json.dumps(value, default=_as_json))


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
    click.confirm(question(), abort=True, err=True)
