"""
The doctor: finds what is wrong with an outbox, or soon will be, and says what to do.

Each module has the checks of one theme, as pure functions of facts; `pooler`, `database` and `broker` read the facts
and run the checks. The doctor only reads, over its own connections: one to the database (behind a pooler a second one,
and one to PgBouncer's console), one in replication mode, one to each broker host if broker_url is set. It creates,
changes and publishes nothing. A check whose facts cannot be read is `unknown`, and the others go on.
"""

from __future__ import annotations

from collections.abc import Iterator

from outrider.errors import DatabaseError
from outrider.operations.diagnostic_queries import Unavailable
from outrider.operations.doctor.broker import BrokerCheck, Route
from outrider.operations.doctor.database import DatabaseCheck
from outrider.operations.doctor.finding import Finding, failed, not_checked, unknown
from outrider.operations.doctor.options import DoctorOptions, DoctorSettings
from outrider.operations.doctor.pooler import check_pooler, find_pooler
from outrider.storage.connection import connect
from outrider.storage.store import Store

__all__ = ["DoctorOptions", "DoctorSettings", "Finding", "examine"]


def examine(settings: DoctorSettings, options: DoctorOptions) -> Iterator[Finding]:
    """Yield the findings one by one. An unusable broker_url raises SettingsError from this call, before any check."""
    broker_url = settings.broker_url
    broker = None if broker_url is None else BrokerCheck(broker_url.get_secret_value(), settings)
    return _findings(settings, options, broker)


def _findings(settings: DoctorSettings, options: DoctorOptions, broker: BrokerCheck | None) -> Iterator[Finding]:
    routes: list[Route] | Unavailable = []
    try:
        with connect(
            settings.database_dsn,
            application_name="outrider doctor",
            connect_timeout_seconds=settings.connect_timeout_seconds,
        ) as connection:
            store = Store(connection, settings.schema_name)
            timeout = settings.connect_timeout_seconds
            pooler = find_pooler(store, settings.database_dsn, connect_timeout_seconds=timeout)
            yield check_pooler(pooler)
            if pooler is not None and not pooler.transactions:
                return  # the other checks read in transactions
            database = DatabaseCheck(store, settings, options)
            yield from database.findings()
            if broker is not None:
                routes = database.routes()
    except DatabaseError as error:
        yield failed("database", str(error), "check that PostgreSQL is running and that database_url is right")
    if broker is None:
        yield unknown("broker", "not examined: broker_url is not set", "set broker_url")
    else:
        if isinstance(routes, Unavailable):
            yield not_checked("exchanges", routes)
            routes = []
        yield from broker.findings([*routes, *map(Route, options.exchanges)])
