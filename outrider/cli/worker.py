"""
`outrider worker`: consume messages with the functions of an application. The package `consumer` does the work.

It is imported by name when the command runs: the kernel does not know who builds on it, and need not have its extra.
"""

from __future__ import annotations

import importlib

import click

from outrider.errors import SettingsError
from outrider.runtime.command import settings_flags
from outrider.settings.loading import load_settings
from outrider.settings.models import WorkerSettings


@click.command(name="worker", context_settings={"max_content_width": 120})
@click.argument("modules", metavar="MODULE...", nargs=-1, required=True)
@settings_flags(WorkerSettings, only=WorkerSettings.flags())
def command(config: str | None, modules: tuple[str, ...], **flags: object) -> None:
    """
    Consume messages with the functions that are decorated with @consume in MODULE..., such as shop.consumers.

    Runs until SIGTERM or SIGINT: then it stops consuming, gives back what was not begun, finishes what was and exits
    with 0; a second signal ends it at once. Start as many as you like, anywhere.

    Settings come from the environment, a TOML file (--config) and these flags, each overriding the one before. Put
    secrets into the environment or the file: flags show up in the list of processes.
    """
    settings = load_settings(WorkerSettings, flags, config_file=config)
    try:
        process = importlib.import_module("outrider.consumer.process")
    except ModuleNotFoundError as error:
        raise SettingsError(f"{error.name} is not installed: pip install 'outrider[consumer]'") from None
    process.run_worker(settings, modules)
