"""
Options that several commands share, and the types of their values: ids, durations, times, text that a column can hold.

A wrong value is a usage error in one line (exit status 2), before anything is connected or written.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

import click

from outrider.operations.message_selection import MessageSelection, parse_message_id
from outrider.runtime.command import settings_flags
from outrider.settings.database import DatabaseSettings, MessageCommandSettings
from outrider.settings.durations import parse_duration
from outrider.settings.loading import load_settings
from outrider.storage.connection import connect
from outrider.storage.store import Store

F = TypeVar("F", bound=Callable[..., Any])
S = TypeVar("S", bound=MessageSelection)

EXIT_STATUS = "Exit status: 0 done; 1 an error of the database, or no such message; 2 wrong usage or settings."


class Number(click.FloatRange):
    """A finite number in a range. click's own range accepts NaN."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


def duration(value: str) -> float:
    """Seconds, from text such as 90s, 1m30s, 2h, 7d."""
    with _usage_errors():
        return parse_duration(value).seconds


def duration_or_time(value: str) -> float | datetime:
    """Seconds, or a time in ISO 8601 with its time zone."""
    try:
        return parse_duration(value).seconds
    except ValueError:
        pass
    try:
        time = datetime.fromisoformat(value)
    except ValueError:
        message = f"{value!r} is neither a duration such as 2h nor a time such as 2026-01-31T12:00Z"
        raise click.BadParameter(message) from None
    if time.tzinfo is None:
        raise click.BadParameter(f"{value!r} needs a time of day and a time zone, as in 2026-01-31T12:00Z")
    try:
        return time.astimezone(UTC)
    except OverflowError:
        raise click.BadParameter(f"{value!r} is outside the years 1 to 9999 in UTC") from None


def message_id(value: str) -> int | str:
    """A row id, an event_id or a task id."""
    with _usage_errors():
        return parse_message_id(value)


@contextmanager
def _usage_errors() -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def text(shortest: int = 1, longest: int | None = None) -> Callable[[str], str]:
    """Text of so many bytes that PostgreSQL can store."""

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
redactor_flags = settings_flags(MessageCommandSettings, only=["database_url", "schema", "redactor"])
json_flag = click.option("--json", "as_json", is_flag=True, help="print JSON")
dry_run_flag = click.option("--dry-run", is_flag=True, help="show what is selected, and change nothing")
yes_flag = click.option("--yes", is_flag=True, help="do not ask for confirmation")
all_flag = click.option("--all", "everything", is_flag=True, help="select all, if no other condition is given")
type_option = click.option("--type", "event_type", type=text(), metavar="GLOB", help="event types, such as 'order.*'")
older_than_option = partial(click.option, "--older-than", "older_than_seconds", type=duration, metavar="DURATION")
rate_option = click.option(
    "--rate", type=Number(min=0.1, max=100_000), metavar="N", help="at most N messages per second"
)
payload_flag = click.option(
    "--payload", "with_payload", is_flag=True, help="show the payload (if a redactor is set: its redacted copy)"
)


limit_option = click.option(
    "--limit", type=click.IntRange(1, 1_000_000_000), default=50, show_default=True, metavar="N", help="show at most N"
)


def selection_options(*more: Callable[[F], F], age: str) -> Callable[[F], F]:
    """IDs, --type, --older-than, --newer-than (since they were `age`), and more: see `take_selection`."""

    def decorate(function: F) -> F:
        options: list[Callable[[F], F]] = [
            click.argument("ids", metavar="[ID]...", nargs=-1, type=message_id),
            type_option,
            *more,
            older_than_option(help=f"{age} longer ago, such as 90s, 7d"),
            click.option(
                "--newer-than", "newer_than_seconds", type=duration, metavar="DURATION", help=f"{age} more recently"
            ),
        ]
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def take_selection(given: dict[str, Any], selection: type[S], *, everything: bool = True) -> S:
    """
    Remove the values of `selection_options` from what click gives a command, and return them as a selection: each
    option has the name of a field. UsageError without any condition, unless `everything`.
    """
    conditions = {field.name: given.pop(field.name) for field in fields(selection)}
    if not everything and not any(value not in (None, (), False) for value in conditions.values()):
        raise click.UsageError("select messages by ids, --type or another condition; or give --all")
    return selection(**conditions | {"ids": conditions["ids"] or None})


@contextmanager
def open_store(config: str | None, flags: Mapping[str, object]) -> Iterator[Store]:
    """The outbox of the settings and flags."""
    settings = load_settings(DatabaseSettings, flags, config_file=config)
    with connect(settings.database_dsn, application_name="outrider") as connection:
        yield Store(connection, settings.schema_name)
