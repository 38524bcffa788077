"""
What the repair commands read from the command line: ids, durations, instants, text that the database can hold.

A value that is wrong is a usage error in one line (exit status 2), before anything is connected or written.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, TypeVar

import click

from outrider.operations import selection
from outrider.runtime.command import settings_flags
from outrider.settings.loading import load_settings
from outrider.settings.models import DatabaseSettings, RepairSettings
from outrider.storage.store import Store, connect

F = TypeVar("F", bound=Callable[..., Any])

EXIT_STATUS = "Exit status: 0 done; 1 the database said no, or there is no such message; 2 wrong usage or settings."


class Number(click.FloatRange):
    """A finite number in a range. click's own range takes NaN, which is neither below nor above anything."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


def duration(value: str) -> float:
    """Seconds; of 90s, 15m, 2h, 7d."""
    with _usage_errors():
        return selection.duration(value)


def duration_or_instant(value: str) -> float | datetime:
    """Seconds, or an instant in ISO 8601 with its time zone."""
    try:
        return selection.duration(value)
    except ValueError:
        pass
    try:
        instant = datetime.fromisoformat(value)
    except ValueError:
        message = f"{value!r} is neither a duration such as 2h nor an instant such as 2026-01-31T12:00Z"
        raise click.BadParameter(message) from None
    if instant.tzinfo is None:
        raise click.BadParameter(f"{value!r} needs a time of day and a time zone, as in 2026-01-31T12:00Z")
    try:
        return instant.astimezone(UTC)
    except OverflowError:
        raise click.BadParameter(f"{value!r} is outside of the years 1 to 9999 in UTC") from None


def row_or_event_id(value: str) -> int | str:
    """A row's id, or the event_id of a message."""
    with _usage_errors():
        return selection.row_or_event_id(value)


@contextmanager
def _usage_errors() -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def text(shortest: int = 1, longest: int | None = None) -> Callable[[str], str]:
    """What a column of so many bytes can hold."""

    def check(value: str) -> str:
        try:
            size = len(value.encode())
        except UnicodeEncodeError:
            raise click.BadParameter("is not UTF-8 text") from None
        if "\0" in value:
            raise click.BadParameter("must not contain a NUL character")
        if size < shortest:
            raise click.BadParameter("must not be empty")
        if longest is not None and size > longest:
            raise click.BadParameter(f"must be at most {longest} bytes, not {size}")
        return value

    return check


database_flags = settings_flags(DatabaseSettings, only=["database_url", "schema"])
redactor_flags = settings_flags(RepairSettings, only=["database_url", "schema", "redactor"])
json_flag = click.option("--json", "as_json", is_flag=True, help="JSON for machines instead of a table")
dry_run_flag = click.option("--dry-run", is_flag=True, help="say how many and which, and change nothing")
all_flag = click.option("--all", "everything", is_flag=True, help="all of them, where nothing else is selected")
rate_option = click.option(
    "--rate", type=Number(min=0.1, max=100_000), metavar="N", help="at most so many messages a second"
)
payload_flag = click.option(
    "--payload", "with_payload", is_flag=True, help="show the payload as it is; where a redactor is set, its copy"
)


def limit_option(default: int = 50) -> Callable[[F], F]:
    return click.option(
        "--limit",
        type=click.IntRange(1, selection.LARGEST_ID),
        default=default,
        show_default=True,
        metavar="N",
        help="show no more than so many",
    )


def selection_options(*more: Callable[[F], F], age: str) -> Callable[[F], F]:
    """IDs, --type, --older-than, --newer-than (since they were `age`), and more."""

    def decorate(function: F) -> F:
        options: list[Callable[[F], F]] = [
            click.argument("idents", metavar="[ID]...", nargs=-1, type=row_or_event_id),
            click.option("--type", "event_type", type=text(), metavar="GLOB", help="event types, such as 'order.*'"),
            *more,
            click.option("--older-than", type=duration, metavar="DURATION", help=f"{age} longer ago, such as 90s, 7d"),
            click.option("--newer-than", type=duration, metavar="DURATION", help=f"{age} more recently"),
        ]
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def common_conditions(selected: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a MessageSelection, from the options of `selection_options`."""
    idents: tuple[int | str, ...] = selected["idents"]
    return {
        "ids": [ident for ident in idents if isinstance(ident, int)] if idents else None,
        "event_ids": [ident for ident in idents if isinstance(ident, str)] if idents else None,
        "event_type": selected["event_type"],
        "older_than_seconds": selected["older_than"],
        "newer_than_seconds": selected["newer_than"],
    }


def require_selection(selected: Mapping[str, Any], everything: bool) -> None:
    """Nothing is done to all messages by accident."""
    if not everything and not any(value not in (None, (), False) for value in selected.values()):
        raise click.UsageError("say which messages: ids, --type or another condition; or --all")


@contextmanager
def open_store(config: str | None, flags: Mapping[str, object]) -> Iterator[Store]:
    """The outbox that the settings and flags name."""
    settings = load_settings(DatabaseSettings, flags, config_file=config)
    with connect(settings.database_dsn, application_name="outrider") as connection:
        yield Store(connection, settings.schema_name)
