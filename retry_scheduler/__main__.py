"""The command `retry-scheduler`, also `python -m retry_scheduler`."""

from __future__ import annotations

from contextlib import ExitStack

import click

from outbox import __version__
from outbox.command import run, settings_flags, version_option
from outbox.settings import SchedulerSettings, load_settings
from outbox.shutdown import Shutdown
from outbox.telemetry.health import Health
from outbox.telemetry.http import HttpServer
from outbox.telemetry.logs import configure_logging
from outbox.telemetry.metrics import Metrics
from outbox.telemetry.sentry import configure_sentry
from retry_scheduler.scheduler import Scheduler


@click.command("retry-scheduler", context_settings={"max_content_width": 120})
@settings_flags(SchedulerSettings)
@click.option("--once", is_flag=True, help="deliver what is due, keep house, and exit (for cron)")
@version_option
def command(config: str | None, once: bool, **flags: object) -> None:
    """
    Deliver the outbox messages that the relay did not: after failures, outages and crashes, and delayed ones.

    Runs until SIGTERM or SIGINT: then it finishes what is in flight, releases the rest and exits with 0; a second
    signal ends it at once. Start as many as you like, anywhere. Without a relay, and with `handover_after` 0 (see
    `outbox setup`), this is a plain polling outbox.

    Settings come from the environment, a TOML file (--config) and these flags, each overriding the one before. Put
    secrets into the environment or the file: flags show up in the list of processes.
    """
    settings = load_settings(SchedulerSettings, flags, config_file=config)
    configure_logging(settings.log_level, settings.log_format, service="retry-scheduler", name=settings.name)
    reporter = configure_sentry(settings.sentry_dsn, service="retry-scheduler", release=__version__)
    metrics = Metrics("scheduler", [rule.match for rule in settings.retry_rules])
    with ExitStack() as resources:
        resources.callback(reporter.close)
        shutdown = resources.enter_context(Shutdown())
        health = resources.enter_context(Health(liveness_file=settings.liveness_file))
        scheduler = Scheduler(settings, shutdown, metrics=metrics, health=health)
        if settings.http_port is not None:
            server = HttpServer(
                settings.http_host, settings.http_port, metrics=metrics, health=health, status=scheduler.status
            )
            resources.callback(server.close)
            server.start()
        try:
            scheduler.drain() if once else scheduler.run()
        except Exception as error:
            reporter.capture(error)
            raise


def main() -> None:
    run(command)


if __name__ == "__main__":
    main()
