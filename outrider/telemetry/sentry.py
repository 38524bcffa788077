"""
Sentry: reports unexpected errors, if a DSN is configured. Without one, sentry_sdk is not imported.

A report holds the classes, the first lines and the tracebacks of the exceptions, and the service's name. It holds no
local variables, command line, environment, breadcrumbs or user, so no rows, payloads or passwords. (Later lines of a
database error can quote a row: only the first line is kept, without the credentials of a URL.)

The client is separate: nothing in the process is patched, and a Sentry client of the application is not used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from outrider.errors import OutboxError, SettingsError
from outrider.failures import one_line
from outrider.telemetry.logs import get_logger

if TYPE_CHECKING:
    from pydantic import SecretStr
    from sentry_sdk import Client
    from sentry_sdk.types import Event, Hint

FLUSH_SECONDS = 2.0
OUR_PACKAGE = "outrider"

log = get_logger(__name__)


def configure_sentry(dsn: SecretStr | None, *, service: str, release: str) -> ErrorReporter:
    """The reporter of this process. SettingsError if the DSN is not valid."""
    if dsn is None:
        return ErrorReporter(None, service)
    try:
        import sentry_sdk
        from sentry_sdk.utils import BadDsn
    except ImportError:
        raise SettingsError("sentry_dsn: sentry-sdk is not installed: pip install 'outrider[services]'") from None
    try:
        client = sentry_sdk.Client(
            dsn=dsn.get_secret_value(),
            release=release,
            before_send=_scrub,
            # send_default_pii is not set: false is the default, and newer versions deprecate the option.
            include_local_variables=False,
            # Integrations would add the command line, with its passwords, and patch other libraries.
            default_integrations=False,
            auto_enabling_integrations=False,
            auto_session_tracking=False,
            enable_backpressure_handling=False,
            max_breadcrumbs=0,
            spotlight=False,
            in_app_include=[OUR_PACKAGE],
        )
    except BadDsn:  # its text can quote the key of the DSN
        raise SettingsError("sentry_dsn: not a Sentry DSN (https://KEY@HOST/PROJECT)") from None
    return ErrorReporter(client, service)


class ErrorReporter:
    """Without a client it does nothing."""

    def __init__(self, client: Client | None, service: str) -> None:
        self._client = client
        self._service = service

    def capture(self, error: BaseException) -> None:
        """Report an unexpected error. An OutboxError is expected, and not reported. Never raises."""
        if self._client is None or isinstance(error, OutboxError):
            return
        from sentry_sdk.utils import event_from_exception

        try:
            event, hint = event_from_exception(error, client_options=self._client.options)
            event["tags"] = {"service": self._service}
            self._client.capture_event(event, hint)
        except Exception as failure:  # must not hide the error that was to be reported
            log.warning("sentry_report_failed", error=type(failure).__name__)

    def close(self) -> None:
        """Send the reports that are queued, within FLUSH_SECONDS."""
        if self._client is not None:
            self._client.close(timeout=FLUSH_SECONDS)


def _scrub(event: Event, hint: Hint) -> Event:  # noqa: ARG001 (the SDK passes both)
    for exception in (event.get("exception") or {}).get("values") or ():
        text = str(exception.get("value") or "")
        exception["value"] = one_line(text.partition("\n")[0])
    return event
