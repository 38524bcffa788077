"""
Telemetry of one service process, as a whole: metrics, health, the HTTP endpoints, StatsD and error reports, opened and
closed together.

    with Telemetry(settings, service="cdc-relay", label="relay") as telemetry:
        telemetry.serve(status)
        ...

An exception that leaves the block is reported, unless it is one for the operator (an OutboxError).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from outrider.runtime.state_reader import StateReader
from outrider.settings.models import ServiceSettings
from outrider.telemetry.health import Health
from outrider.telemetry.http import HttpServer
from outrider.telemetry.logs import configure_logging
from outrider.telemetry.metrics import Metrics
from outrider.telemetry.sentry import configure_sentry
from outrider.telemetry.statsd import StatsD
from outrider.version import __version__


class Telemetry:
    def __init__(self, settings: ServiceSettings, *, service: str, label: str) -> None:
        configure_logging(settings.log_level, settings.log_format, service=service, name=settings.name)
        self._settings = settings
        self._label = label
        self._reporter = configure_sentry(settings.sentry_dsn, service=service, release=__version__)
        self._resources = ExitStack()
        self.metrics = Metrics(label, settings.labelled_types)
        self.health = Health(liveness_file=settings.liveness_file)

    def __enter__(self) -> Self:
        self._resources.callback(self._reporter.close)
        self._resources.enter_context(self.health)
        if self._settings.statsd_target is not None:
            bridge = StatsD(
                self.metrics.registry,
                self._settings.statsd_target,
                service=self._label,
                flavor=self._settings.statsd_flavor,
                prefix=self._settings.statsd_prefix,
                tags=self._settings.statsd_tags,
                interval_seconds=self._settings.statsd_interval_seconds,
            )
            self._resources.enter_context(bridge)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception):
            self._reporter.capture(error)
        self._resources.close()

    def serve(self, status: Callable[[], Mapping[str, object]]) -> None:
        """
        Open the HTTP endpoints, where a port is set; a port in use is a SettingsError.

        /status shows what `status` tells of this process and, as `state`, what `outrider status --json` shows.
        """
        if self._settings.http_port is None:
            return
        state = StateReader(self._settings)
        server = HttpServer(
            self._settings.http_host,
            self._settings.http_port,
            metrics=self.metrics,
            health=self.health,
            status=lambda: {**status(), "state": state.ask()},
        )
        self._resources.callback(server.close)
        server.start()
