"""Open what both services need, from their settings: a store on a new database connection, and a publisher."""

from __future__ import annotations

from outrider.delivery.publisher import Publisher, open_publisher
from outrider.settings.service import ServiceSettings
from outrider.storage.connection import connect
from outrider.storage.store import Store


def open_service_store(settings: ServiceSettings, service: str) -> Store:
    """A store on a new connection, on which every statement has a time limit. Raises DatabaseError."""
    connection = connect(
        settings.database_dsn,
        application_name=f"{service} {settings.name}",
        connect_timeout_seconds=settings.connect_timeout_seconds,
        statement_timeout_seconds=settings.statement_timeout_seconds,
    )
    return Store(connection, settings.schema_name)


def open_service_publisher(settings: ServiceSettings) -> Publisher:
    """A publisher that is not connected yet. Raises SettingsError for an unusable broker_url."""
    return open_publisher(
        settings.broker_url.get_secret_value(),
        send_timeout_seconds=settings.send_timeout_seconds,
        connect_timeout_seconds=settings.connect_timeout_seconds,
        tls=settings.broker_tls,
        create_exchanges=settings.declare,
    )
