"""Which dead letters a management command means, from its command line. A wrong value is a usage error in one line."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from django.core.management.base import CommandError, CommandParser

from outbox.dead_letters import Selection
from outbox.errors import OutboxError

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}


def duration(text: str) -> float:
    """90s, 15m, 2h, 30d: seconds."""
    match = re.fullmatch(r"(\d{1,9})([smhdw])", text, re.ASCII)
    if match is None:
        raise ArgumentTypeError(f"{text!r} is not a duration such as 90s, 15m, 2h or 30d")
    return min(float(match[1]) * _UNITS[match[2]], 100 * 366 * 86_400.0)


def ident(text: str) -> int | str:
    """A row's id, or an event_id."""
    if text.isascii() and text.isdecimal() and len(text) < 19:
        return int(text)
    try:
        return str(UUID(text))
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is neither a row's id nor an event_id") from None


def add_common_arguments(parser: CommandParser) -> None:
    parser.add_argument("--type", metavar="GLOB", help="event types, such as 'order.*'")
    parser.add_argument("--dry-run", action="store_true", help="say how many, and change nothing")
    parser.add_argument("--database", metavar="ALIAS", help="default: OUTBOX['DATABASE']")


def selection(options: dict[str, Any]) -> Selection:
    idents: list[int | str] = options.get("idents") or []
    return Selection(
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
