"""The command `cdc-relay`, also `python -m outrider.cdc_relay`."""

from __future__ import annotations

import click

from outrider.cdc_relay.relay import Relay
from outrider.runtime.command import CONTEXT_SETTINGS, run, settings_flags, tune_garbage_collection, version_option
from outrider.runtime.service_telemetry import Telemetry
from outrider.runtime.shutdown import Shutdown
from outrider.settings.loading import load_settings
from outrider.settings.relay import RelaySettings


@click.command("cdc-relay", context_settings=CONTEXT_SETTINGS)
@settings_flags(RelaySettings)
@version_option
def command(config: str | None, **flags: object) -> None:
    """
    Publish committed outbox messages, straight from PostgreSQL's write-ahead log.

    Runs until SIGTERM or SIGINT. Then it finishes the messages in flight, hands the rest over to the scheduler and
    exits with 0; a second signal ends it at once. A second relay is a standby: it waits for the replication slot.

    Settings come from a TOML file (--config), the environment and these flags; each overrides the one before. Put
    secrets into the environment or the file: flags are visible in the process list.
    """
    settings = load_settings(RelaySettings, flags, config_file=config)
    shutdown = Shutdown(shutdown_timeout_seconds=settings.shutdown_timeout_seconds)
    with shutdown, Telemetry(settings, service="cdc-relay", label="relay") as telemetry:
        relay = Relay(settings, shutdown, telemetry)
        telemetry.serve(relay.status)
        tune_garbage_collection()
        relay.run()


def main() -> None:
    run(command)


if __name__ == "__main__":
    main()
