"""
WorkerSettings: the settings of `outrider worker`.
"""

from __future__ import annotations

from pydantic import Field, SecretStr

from outrider.settings.database import Name, Texts, setting_name
from outrider.settings.service import ServiceSettings
from outrider.storage.message import DEFAULT_EXCHANGE

_OF_PUBLISHERS = frozenset(
    {"send_timeout_seconds", "max_attempts", "backoff_seconds", "max_backoff_seconds", "retry_rules", "reject_errors"}
    | {"archive", "labelled_types", "replication_url", "publication", "slot"}
)
"""Inherited settings that only the relay and the scheduler use."""


class WorkerSettings(ServiceSettings):
    """A worker uses the database only for its inbox and its presence."""

    database_url: SecretStr = Field(
        default_factory=lambda: SecretStr(""),
        description="libpq connection string of the database with the outbox tables, to show presence there; optional",
    )
    prefetch: int = Field(default=50, ge=1, le=65535, description="messages that one consumer holds at a time")
    threads: int = Field(default=8, ge=1, le=1000, description="handlers without async that run at the same time")
    exchange: Name = Field(default=DEFAULT_EXCHANGE, description="exchange of the consumers that name none")
    retry_delays: Texts = Field(
        default=("1s", "10s", "1m", "5m"),
        description="delays after each failed attempt, for consumers that name none; then a message is dead",
    )
    declare: bool = Field(
        default=True, description="create missing queues and exchanges, or only check that they exist"
    )
    inbox_database: str | None = Field(
        default=None,
        min_length=1,
        description="package.module:attribute (a pool, engine or sessionmaker) or a Django alias, for consumers with "
        "inbox=True; default: a connection to database_url for each message",
    )

    @classmethod
    def flags(cls) -> frozenset[str]:
        """The names of the settings that a worker uses."""
        return frozenset(map(setting_name, cls.model_fields)) - _OF_PUBLISHERS
