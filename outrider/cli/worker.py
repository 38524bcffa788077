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
@click.option("--check", is_flag=True, help="check settings, consumers, queues and permissions, and exit")
@settings_flags(WorkerSettings, only=WorkerSettings.flags())
def command(config: str | None, modules: tuple[str, ...], check: bool, **flags: object) -> None:
    """
    Run the consumers of an application.

    Consumers are functions decorated with @consume in MODULE..., such as shop.consumers.

    Runs until SIGTERM or SIGINT. Then it stops consuming, returns messages that it has not started, finishes the others
    and exits with status 0; a second signal ends it at once. Any number of workers may run, on any machine.

    Settings come from a TOML file (--config), the environment and these flags, each overriding the one before. Put
    secrets into the environment or the file: the list of processes shows flags.
    """
    settings = load_settings(WorkerSettings, flags, config_file=config)
    process = import_consumer("process")
    if check:
        click.echo(process.check_worker(settings, modules))
    else:
        process.run_worker(settings, modules)
