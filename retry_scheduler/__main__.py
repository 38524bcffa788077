"""The command `retry-scheduler`, also `python -m outrider.retry_scheduler`."""

from __future__ import annotations

import click

from outrider.retry_scheduler.scheduler import Scheduler
from outrider.runtime.command import CONTEXT_SETTINGS, run, settings_flags, tune_garbage_collection, version_option
from outrider.runtime.service_telemetry import Telemetry
from outrider.runtime.shutdown import Shutdown
from outrider.settings.loading import load_settings
from outrider.settings.scheduler import SchedulerSettings


@click.command("retry-scheduler", context_settings=CONTEXT_SETTINGS)
@settings_flags(SchedulerSettings)
@click.option("--once", is_flag=True, help="deliver what is due, run every maintenance task, and exit (for cron)")
@version_option
def command(config: str | None, once: bool, **flags: object) -> None:
    """
    Deliver the outbox messages that the relay did not: after failures, outages and crashes, and delayed ones.

    Runs until SIGTERM or SIGINT: then it finishes what is in flight, releases the rest and exits with 0; a second
    signal ends it at once. Any number of schedulers can run at the same time. Without a relay, and with
    `handover_after` 0 (see `outrider setup`), this is a plain polling outbox.

    Settings come from a TOML file (--config), the environment and these flags, each overriding the one before. Put
    secrets into the environment or the file: flags show up in the list of processes.
    """
    settings = load_settings(SchedulerSettings, flags, config_file=config)
    shutdown = Shutdown(shutdown_timeout_seconds=settings.shutdown_timeout_seconds)
    with shutdown, Telemetry(settings, service="retry-scheduler", label="scheduler") as telemetry:
        scheduler = Scheduler(settings, shutdown, metrics=telemetry.metrics, health=telemetry.health)
        telemetry.serve(scheduler.status)
        tune_garbage_collection()
        if once:
            scheduler.drain()
        else:
            scheduler.run()


def main() -> None:
    run(command)


if __name__ == "__main__":
    main()
