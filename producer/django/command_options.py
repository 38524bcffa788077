"""Which dead letters a management command means, from its command line. A wrong value is a usage error in one line."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.core.management.base import CommandError, CommandParser

from outrider.errors import OutboxError
from outrider.operations import selection as outbox_selection
from outrider.operations.dead_letters import DeadLetterSelection


def duration(text: str) -> float:
    """90s, 15m, 2h, 30d: seconds."""
    with _argument_errors():
        return outbox_selection.duration(text)


def ident(text: str) -> int | str:
    """A row's id, or an event_id."""
    with _argument_errors():
        return outbox_selection.row_or_event_id(text)


@contextmanager
def _argument_errors() -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None


def add_common_arguments(parser: CommandParser) -> None:
    parser.add_argument("--type", metavar="GLOB", help="event types, such as 'order.*'")
    parser.add_argument("--dry-run", action="store_true", help="say how many, and change nothing")
    parser.add_argument("--database", metavar="ALIAS", help="default: OUTRIDER['DATABASE']")


def selection(options: dict[str, Any]) -> DeadLetterSelection:
    idents: list[int | str] = options.get("idents") or []
    return DeadLetterSelection(
        ids=[each for each in idents if isinstance(each, int)] if idents else None,
        event_ids=[each for each in idents if isinstance(each, str)] if idents else None,
        event_type=options["type"],
        reason=options.get("reason"),
        older_than_seconds=options.get("older_than"),
    )


@contextmanager
def command_errors() -> Iterator[None]:
    """What the database says comes out in one line, with exit status 1."""
    try:
        yield
    except OutboxError as error:
        raise CommandError(str(error)) from error
