"""
`outrider worker`: consume messages with the functions of an application. outrider.consumer does the work.
"""

from __future__ import annotations

import click

from outrider.cli._consumer import import_consumer
from outrider.runtime.command import settings_flags
from outrider.settings.loading import load_settings
from outrider.settings.worker import WorkerSettings


@click.command(name="worker")
@click.argument("modules", metavar="MODULE...", nargs=-1, required=True)
@settings_flags(WorkerSettings, only=WorkerSettings.flags())
def command(config: str | None, modules: tuple[str, ...], **flags: object) -> None:
    """
    Run the consumers of an application.

    Consumers are functions decorated with @consume in MODULE..., such as shop.consumers.

    Runs until SIGTERM or SIGINT. Then it stops consuming, returns messages that it has not started, finishes the others
    and exits with status 0; a second signal ends it at once. Any number of workers may run, on any machine.

    Settings come from the environment, a TOML file (--config) and these flags, each overriding the one before. Put
    secrets into the environment or the file: the list of processes shows flags.
    """
    settings = load_settings(WorkerSettings, flags, config_file=config)
    import_consumer("process").run_worker(settings, modules)
