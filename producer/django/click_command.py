"""
ClickCommand: a management command that runs one of the installed commands (`cdc-relay`, `outrider doctor`, ...).

It has the flags of that command; settings that no flag gives come from Django's settings. The exit status is the same:
1 when the database or the broker refuses, 2 for wrong settings or usage.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import partial
from typing import Any, ClassVar

from django.core.management.base import BaseCommand, CommandError, CommandParser

from outrider.errors import OutboxError, SettingsError
from outrider.producer.django.services import command_settings, load_click_command
from outrider.telemetry.printable import printable


class ClickCommand(BaseCommand):
    command_line: ClassVar[str]
    """The installed command, such as `outrider doctor`."""

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--database", metavar="ALIAS", help="default: OUTRIDER['DATABASE']")
        try:
            options = load_click_command(self.command_line).params
        except SettingsError as error:
            parser.error(str(error))
        group = parser.add_argument_group(
            f"flags of `{self.command_line}`",
            "each overrides OUTRIDER['SERVICES'], which overrides OUTRIDER_* variables",
        )
        for option in options:
            if option.name != "version":
                _add_option(group, option)

    def handle(self, *args: Any, database: str | None, **options: Any) -> None:  # noqa: ARG002
        from click import ClickException
        from click.exceptions import Exit

        try:
            command = load_click_command(self.command_line)
            context = command.make_context(self.command_line, list(_command_line_flags(command, options)))
            given = {name: value for name, value in context.params.items() if value is not None}
            arguments = {**context.params, **command_settings(database), **given}
            with context:
                self.run_command(database, partial(command.callback, **arguments))
        except OutboxError as error:
            raise CommandError(
                printable(str(error)), returncode=2 if isinstance(error, SettingsError) else 1
            ) from error
        except ClickException as error:
            raise CommandError(printable(error.format_message()), returncode=error.exit_code) from error
        except Exit as error:
            raise SystemExit(error.exit_code) from None

    def run_command(self, database: str | None, command: partial[Any]) -> None:  # noqa: ARG002
        """Run the command; services override this. `database` is the alias, if one was given."""
        command()


def _add_option(group: Any, option: Any) -> None:
    text = (option.help or "").replace("%", "%%")
    if option.secondary_opts:
        group.add_argument(*option.opts, action=argparse.BooleanOptionalAction, default=None, help=text)
    elif option.is_flag:
        group.add_argument(*option.opts, action="store_true", help=text)
    else:
        action = "append" if option.multiple else "store"
        group.add_argument(*option.opts, action=action, metavar=option.metavar or "VALUE", help=text)


def _command_line_flags(command: Any, options: dict[str, Any]) -> Iterator[str]:
    """The flags that were given, in the form that click parses."""
    for option in command.params:
        # argparse names an option after its flag; click may have another name for it.
        value = options.get(option.opts[0].lstrip("-").replace("-", "_"))
        if isinstance(value, bool):
            flags = option.opts if value else option.secondary_opts
            yield from flags[:1]
        elif value is not None:
            for each in value if isinstance(value, list) else [value]:
                yield from (option.opts[0], each)
