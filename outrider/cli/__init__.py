"""
The `outrider` command. Every module of this package without a leading underscore is one subcommand, in its `command`.

A module is imported when its subcommand is used, so that `outrider setup` does not import what only the demo needs.
"""

from __future__ import annotations

import importlib
import pkgutil

import click

from outrider.runtime.command import CONTEXT_SETTINGS, HelpfulGroup, run, version_option


class ModuleCommands(HelpfulGroup):
    """A group whose subcommands are the modules of this package."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_"))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        command = importlib.import_module(f"{__name__}.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command


@click.group(
    name="outrider",
    cls=ModuleCommands,
    context_settings=CONTEXT_SETTINGS,
)
@version_option
def outrider() -> None:
    """
    Set up, check and operate a transactional outbox on PostgreSQL.

    Settings come from a TOML file (--config or OUTRIDER_CONFIG), OUTRIDER_* environment variables and flags, each
    overriding the one before.

    Exit status: 0 done; 1 an error of the database or the broker; 2 wrong settings or usage.
    """


def main() -> None:
    run(outrider)
