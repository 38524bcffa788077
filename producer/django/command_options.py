"""Options of the management commands for dead letters. A wrong value is a usage error in one line."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.core.management.base import CommandError, CommandParser

from outrider.errors import OutboxError, SettingsError
from outrider.operations.dead_letters import DeadLetterSelection
from outrider.operations.message_selection import parse_message_id
from outrider.settings.durations import parse_duration
from outrider.telemetry.printable import printable


def duration(text: str) -> float:
    """90s, 15m, 2h, 30d: seconds."""
    with _argument_errors():
        return parse_duration(text).seconds


def message_id(text: str) -> int | str:
    """A row's id, an event_id or a task id."""
    with _argument_errors():
        return parse_message_id(text)


@contextmanager
def _argument_errors() -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None


def add_common_arguments(parser: CommandParser) -> None:
    parser.add_argument("--type", metavar="GLOB", help="event types, such as 'order.*'")
    parser.add_argument("--dry-run", action="store_true", help="print how many, and change nothing")
    parser.add_argument("--database", metavar="ALIAS", help="default: OUTRIDER['DATABASE']")


def selection(options: dict[str, Any]) -> DeadLetterSelection:
    return DeadLetterSelection(
        ids=options.get("idents") or None,
        event_type=options["type"],
        reason=options.get("reason"),
        older_than_seconds=options.get("older_than"),
        created_older_than_seconds=options.get("created_older_than"),
    )


@contextmanager
def command_errors() -> Iterator[None]:
    """Errors of the database and of settings are printed in one line, with exit status 1 and 2."""
    try:
        yield
    except OutboxError as error:
        raise CommandError(printable(str(error)), returncode=2 if isinstance(error, SettingsError) else 1) from error
