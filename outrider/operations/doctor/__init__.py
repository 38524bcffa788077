"""
The doctor: what is wrong with an outbox, or soon will be, and what to do about it.

A module per theme holds the checks, pure functions of facts; `database` and `broker` get the facts. Reads only, over
connections of its own: one to the database, one in replication mode, one to each host of the broker where there is a
broker_url. Nothing is created, changed or sent. What the role may not see becomes a warning, and the rest is examined
all the same.
"""

from __future__ import annotations

from collections.abc import Iterator

from outrider.errors import DatabaseError
from outrider.operations.diagnostics import Unavailable
from outrider.operations.doctor.broker import BrokerCheck, Route
from outrider.operations.doctor.database import DatabaseCheck
from outrider.operations.doctor.finding import Finding, cannot_see, failed
from outrider.operations.doctor.options import DoctorOptions, DoctorSettings
from outrider.storage.store import Store, connect

__all__ = ["DoctorOptions", "DoctorSettings", "Finding", "examine"]


def examine(settings: DoctorSettings, questions: DoctorOptions) -> Iterator[Finding]:
    """The findings, as they come. SettingsError, at once, for a broker_url that is unusable."""
    broker = None
    if settings.broker_url is not None:
        broker = BrokerCheck(
            settings.broker_url.get_secret_value(),
            send_timeout_seconds=settings.send_timeout_seconds,
            connect_timeout_seconds=settings.connect_timeout_seconds,
            tls=settings.broker_tls,
        )
    return _findings(settings, questions, broker)


def _findings(settings: DoctorSettings, questions: DoctorOptions, broker: BrokerCheck | None) -> Iterator[Finding]:
    routes: list[Route] | Unavailable = []
    try:
        with connect(
            settings.database_dsn,
            application_name="outrider doctor",
            connect_timeout_seconds=settings.connect_timeout_seconds,
        ) as connection:
            database = DatabaseCheck(Store(connection, settings.schema_name), settings, questions)
            yield from database.findings()
            if broker is not None:
                routes = database.routes()
    except DatabaseError as error:
        yield failed("database", str(error), "is PostgreSQL running, and is database_url right?")
    if broker is not None:
        if isinstance(routes, Unavailable):
            yield cannot_see("exchanges", routes)
            routes = []
        yield from broker.findings([*routes, *map(Route, questions.exchanges)])
