"""
What the commands `outrider`, `cdc-relay` and `retry-scheduler` have in common: flags made from the settings, errors in
one line, the exit status, the tuning of garbage collection.

Exit status: 0 done; 1 an error of the database, the broker or the outbox; 2 wrong settings or usage; 130 interrupted.
Any exception that is not an OutboxError is a bug, and shows its traceback.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, get_args, get_origin

import click
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from outrider.errors import OutboxError, SettingsError
from outrider.settings.database import ENVIRONMENT_PREFIX, DatabaseSettings, setting_name
from outrider.settings.lists import parse_list
from outrider.telemetry.printable import printable
from outrider.version import __version__

F = TypeVar("F", bound=Callable[..., Any])

CONTEXT_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 120}
"""For every command; subcommands inherit it."""


class HelpfulGroup(click.Group):
    """Without arguments it shows its help and exits with 0. click itself treats that as an error since 8.2."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args and not ctx.resilient_parsing:
            click.echo(ctx.get_help())
            ctx.exit()
        return super().parse_args(ctx, args)


def settings_flags(model: type[DatabaseSettings], *, only: Iterable[str] | None = None) -> Callable[[F], F]:
    """Add --config and a flag for every setting of the model, or only for some. The model checks the values."""
    wanted = set(only) if only is not None else None

    def decorate(function: F) -> F:
        for field, info in reversed(model.model_fields.items()):
            name = setting_name(field)
            if (wanted is None or name in wanted) and name != "retry_rules":
                function = _option(name, info)(function)
        return click.option("--config", metavar="FILE", help="TOML file with settings (environment: OUTRIDER_CONFIG)")(
            function
        )

    return decorate


def run(command: click.Command) -> None:
    """Run a command as this process: print an OutboxError to standard error, and exit with the documented status."""
    try:
        command.main(prog_name=command.name, standalone_mode=False)
    except OutboxError as error:
        _print_error(command, str(error))
        sys.exit(2 if isinstance(error, SettingsError) else 1)
    except click.ClickException as error:
        _print_error(command, error.format_message())
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)


def _print_error(command: click.Command, text: str) -> None:
    """In one line: some of click's texts have several."""
    click.echo(f"{command.name}: error: {printable(' '.join(text.split()))}", err=True)


def tune_garbage_collection() -> None:
    """
    Make Python search for reference cycles less often. Messages are created and dropped by the thousand and have no
    cycles; the search took a quarter of the relay's time.
    """
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)


version_option = click.version_option(__version__, prog_name="outrider")


def _option(name: str, info: FieldInfo) -> Callable[[F], F]:
    flag = f"--{name.replace('_', '-')}"
    if info.annotation is bool:
        return click.option(f"{flag}/--no-{name.replace('_', '-')}", name, help=_help(name, info), default=None)
    if get_origin(info.annotation) is tuple:
        return click.option(flag, name, help=_help(name, info), multiple=True, callback=_join)
    return click.option(flag, name, help=_help(name, info), default=None)


def _join(_ctx: click.Context, param: click.Parameter, given: tuple[str, ...]) -> list[str] | None:
    """The values of a flag that can be repeated; None without any, so that other sources apply."""
    try:
        return [part for text in given for part in parse_list(text)] if given else None
    except ValueError as error:
        raise click.BadParameter(str(error), param=param) from None


def _help(name: str, info: FieldInfo) -> str:
    choices = [str(choice) for choice in get_args(info.annotation) if isinstance(choice, str)]
    parts = [info.description or ""]
    if choices:
        parts.append(f"one of {', '.join(choices)}")
    if name.endswith("_seconds"):
        parts.append("in seconds, or with a unit as 90s or 1h")
    if get_origin(info.annotation) is tuple:
        parts.append("comma separated, and the flag can be repeated")
    if info.default is not PydanticUndefined and info.default not in (None, ()):
        parts.append(f"default: {info.default}")
    parts.append(f"environment: {ENVIRONMENT_PREFIX}{name.upper()}")
    return "; ".join(parts)
