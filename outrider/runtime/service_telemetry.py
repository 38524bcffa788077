"""
Telemetry of one service process: logs, metrics, health, HTTP endpoints, StatsD and Sentry, opened and closed together.

    with Telemetry(settings, service="cdc-relay", label="relay") as telemetry:
        telemetry.serve(status)
        ...

An exception that leaves the block is reported to Sentry, unless it is an OutboxError (an error for the operator).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from outrider.runtime.state_reader import StateReader
from outrider.settings.service import ServiceSettings
from outrider.telemetry.health import Health
from outrider.telemetry.http_endpoints import HttpEndpoints
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
            statsd = StatsD(
                self.metrics.registry,
                self._settings.statsd_target,
                service=self._label,
                flavor=self._settings.statsd_flavor,
                prefix=self._settings.statsd_prefix,
                tags=self._settings.statsd_tags,
                timings=self.metrics.histograms,
                interval_seconds=self._settings.statsd_interval_seconds,
            )
            self._resources.enter_context(statsd)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception):
            self._reporter.capture(error)
        self._resources.close()

    def serve(self, status: Callable[[], Mapping[str, object]]) -> None:
        """
        Open the HTTP endpoints if http_port is set. SettingsError if the port is in use.

        /status shows the result of `status()` and, under `state`, the document of `outrider status --json`.
        """
        if self._settings.http_port is None:
            return
        state = StateReader(self._settings)
        server = HttpEndpoints(
            self._settings.http_host,
            self._settings.http_port,
            metrics=self.metrics,
            health=self.health,
            status=lambda: {**status(), "state": state.read()},
        )
        self._resources.callback(server.close)
        server.start()
