"""
What management commands need to run a service inside Django's process: its command, its settings, and the signals.

Settings come from OUTRIDER (SERVICES, SCHEMA, PUBLICATION and SLOT) and the connection parameters of the alias. Flags
override them. Settings that neither gives come from OUTRIDER_* variables, as for the installed commands. The services
are found by their console scripts when one is started: the producer does not import them, and works without them.
"""

from __future__ import annotations

import difflib
import logging
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import entry_points
from threading import Event, Thread
from typing import Any

from django.db import connections
from django.utils.connection import ConnectionDoesNotExist

from outrider.errors import SettingsError
from outrider.producer.django.conf import get_settings
from outrider.producer.django.delivery_signals import DeliverySignals
from outrider.producer.django.signal_watcher import watch
from outrider.settings.durations import LONGEST_SECONDS

JOIN_SECONDS = 10
"""How long a service waits at its end for a signal receiver that is still running."""


def load_click_command(name: str) -> Any:
    """The click command of `cdc-relay`, `outrider doctor` and others; SettingsError where it is not installed."""
    found = entry_points(group="console_scripts", name=name.partition(" ")[0])
    if not found:
        raise SettingsError(f"`{name}` is not installed here: pip install 'outrider[services]'")
    scripts = import_module(next(iter(found)).module)
    try:
        return scripts.load_command(name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "outrider":
            raise
        raise SettingsError(f"`{name}` needs {error.name}: pip install 'outrider[services]'") from error


def command_settings(using: str | None = None) -> dict[str, Any]:
    """The settings of a command that Django's settings give, by their names in lower case."""
    settings = get_settings()
    if unknown := unknown_settings(settings.services):
        raise SettingsError("OUTRIDER['SERVICES']: " + "; ".join(unknown))
    known = {"schema": settings.schema, "publication": settings.publication, "slot": settings.slot}
    given = {key.lower(): value for key, value in settings.services.items()}
    if "database_url" not in given:
        known["database_url"] = conninfo_of(using or settings.database)
    return {key: value for key, value in {**known, **given}.items() if value is not None}


def conninfo_of(alias: str) -> str:
    """The connection string of an alias, from those of its parameters that are libpq's (others are the driver's)."""
    from psycopg.conninfo import make_conninfo
    from psycopg.pq import Conninfo

    known = {option.keyword.decode() for option in Conninfo.get_defaults()}
    try:
        parameters = connections[alias].get_connection_params()
    except ConnectionDoesNotExist:
        raise SettingsError(f"there is no database {alias!r} in DATABASES") from None
    return make_conninfo(**{name: value for name, value in parameters.items() if name in known})


def dead_letter_retention() -> float | None:
    """DEAD_LETTER_RETENTION_SECONDS of OUTRIDER["SERVICES"]; SettingsError if it is no number of seconds."""
    given = {key.lower(): value for key, value in get_settings().services.items()}
    seconds = given.get("dead_letter_retention_seconds")
    try:
        found = None if seconds is None else float(seconds)
    except (TypeError, ValueError):
        found = math.nan
    if found is not None and not 0 < found <= LONGEST_SECONDS:
        raise SettingsError("OUTRIDER['SERVICES']: DEAD_LETTER_RETENTION_SECONDS must be a number of seconds")
    return found


def unknown_settings(given: Mapping[str, Any]) -> list[str]:
    """A line for each unknown name; none where the services are not installed, because their settings are not known."""
    try:
        from outrider.settings.loading import KNOWN_SETTINGS
    except ModuleNotFoundError:
        return []
    known = sorted(name.upper() for name in KNOWN_SETTINGS)
    lines = []
    for key in given:
        if key not in known:
            close = difflib.get_close_matches(str(key).upper(), known, n=1)
            lines.append(f"unknown setting {key!r}" + (f" (did you mean {close[0]}?)" if close else ""))
    return lines


def wrong_settings(given: Mapping[str, Any]) -> list[str]:
    """A line for each wrong value; none where the services are not installed."""
    try:
        from outrider.settings.loading import wrong_values
    except ModuleNotFoundError:
        return []
    return wrong_values({str(key).lower(): value for key, value in given.items() if value is not None})


@contextmanager
def sending_signals(using: str | None, *, archives: bool) -> Iterator[None]:
    """
    Inside the block, a thread with a database connection of its own sends signals for what the services do; and, unless
    the service of this process archives, another thread for what this service delivers.
    """
    from outrider.runtime.delivery_listener import listening

    stop = Event()
    log = logging.getLogger(__name__)
    thread = Thread(target=watch, args=(stop.wait,), kwargs={"using": using, "warn": log.warning}, daemon=True)
    thread.start()
    try:
        if archives:
            yield
        else:
            with DeliverySignals(using or get_settings().database) as signals, listening(signals):
                yield
    finally:
        stop.set()
        thread.join(JOIN_SECONDS)
