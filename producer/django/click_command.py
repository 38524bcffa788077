"""
PlainCommand: a management command that is one of the plain ones (`cdc-relay`, `retry-scheduler`, `outbox ...`).

Its flags are theirs, and what it is not told by flags it takes from Django's settings. Exit status as theirs: 1 the
database or the broker said no, 2 wrong settings or usage.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any, ClassVar

from django.core.management.base import BaseCommand, CommandError, CommandParser

from outrider.errors import OutboxError, SettingsError
from outrider.producer.django.services import plain_command, plain_settings


class PlainCommand(BaseCommand):
    plain: ClassVar[str]
    """What one types outside Django."""

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--database", metavar="ALIAS", help="default: OUTRIDER['DATABASE']")
        try:
            options = plain_command(self.plain).params
        except SettingsError as error:
            parser.error(str(error))
        group = parser.add_argument_group(
            f"flags of `{self.plain}`", "each overrides OUTRIDER['SERVICES'], which overrides OUTRIDER_* variables"
        )
        for option in options:
            if option.name != "version":
                _add(group, option)

    def handle(self, *args: Any, database: str | None, **options: Any) -> None:  # noqa: ARG002
        from click import ClickException
        from click.exceptions import Exit

        try:
            command = plain_command(self.plain)
            context = command.make_context(self.plain, list(_words(command, options)))
            given = {name: value for name, value in context.params.items() if value is not None}
            arguments = {**context.params, **plain_settings(database), **given}
            with context:
                self.run(database, lambda: command.callback(**arguments))
        except OutboxError as error:
            raise CommandError(str(error), returncode=2 if isinstance(error, SettingsError) else 1) from error
        except ClickException as error:
            raise CommandError(error.format_message(), returncode=error.exit_code) from error
        except Exit as error:
            raise SystemExit(error.exit_code) from None

    def run(self, database: str | None, callback: Any) -> None:  # noqa: ARG002 - services look at it
        callback()


def _add(group: argparse._ArgumentGroup, option: Any) -> None:
    text = (option.help or "").replace("%", "%%")
    if option.secondary_opts:
        group.add_argument(*option.opts, action=argparse.BooleanOptionalAction, default=None, help=text)
    elif option.is_flag:
        group.add_argument(*option.opts, action="store_true", help=text)
    else:
        action = "append" if option.multiple else "store"
        group.add_argument(*option.opts, action=action, metavar=option.metavar or "VALUE", help=text)


def _words(command: Any, options: dict[str, Any]) -> Iterator[str]:
    """The flags that were given, as click reads them."""
    for option in command.params:
        # argparse calls an option by its flag, click by a name that may differ.
        value = options.get(option.opts[0].lstrip("-").replace("-", "_"))
        if isinstance(value, bool):
            flags = option.opts if value else option.secondary_opts
            yield from flags[:1]
        elif value is not None:
            for each in value if isinstance(value, list) else [value]:
                yield from (option.opts[0], each)
