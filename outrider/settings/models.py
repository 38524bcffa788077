"""
Settings: one frozen, validated object per process.

What can be set, with units, bounds and defaults; `--help` is made from it. Where the values come from is the business
of configuration.py. Durations are in seconds.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationInfo,
    field_validator,
)
from pydantic_settings import BaseSettings, SettingsConfigDict

from outrider.failures import POLICIES, FailureKind
from outrider.settings.tls import TlsOptions

ENVIRONMENT_PREFIX = "OUTRIDER_"


def _must_fit_63_bytes(name: str) -> str:
    if len(name.encode()) > 63:
        raise ValueError("must be at most 63 bytes: PostgreSQL would cut it off")
    return name


# A century is more than anybody waits, and less than PostgreSQL's intervals and Python's hold.
LONGEST_SECONDS = 36_525 * 86_400
Seconds = Annotated[float, Field(ge=0, le=LONGEST_SECONDS, allow_inf_nan=False)]
PositiveSeconds = Annotated[float, Field(gt=0, le=LONGEST_SECONDS, allow_inf_nan=False)]
Name = Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[^\x00]+$"), AfterValidator(_must_fit_63_bytes)]
SlotName = Annotated[str, Field(max_length=63, pattern=r"^[a-z0-9_]+$")]


class RetryRule(BaseModel):
    """How messages of some types are retried, where it differs from the rest."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    match: str = Field(min_length=1, description="glob on the event type or task name")
    max_attempts: int | None = Field(default=None, ge=1)
    backoff_seconds: PositiveSeconds | None = None
    max_backoff_seconds: PositiveSeconds | None = None


class DatabaseSettings(BaseSettings):
    """What every command needs: where the outbox is."""

    model_config = SettingsConfigDict(env_prefix=ENVIRONMENT_PREFIX, frozen=True, extra="ignore", env_ignore_empty=True)

    database_url: SecretStr = Field(description="libpq connection string or URL of the database that holds the outbox")
    replication_url: SecretStr | None = Field(
        default=None, description="connection string for replication, where database_url goes through a pooler"
    )
    # Called `schema` everywhere outside: a pydantic model cannot have a field of that name. The alias is also the name
    # of the environment variable.
    schema_name: Name = Field(
        default="public", validation_alias="outrider_schema", description="PostgreSQL schema of the outbox tables"
    )
    publication: Name = Field(default="outbox", description="name of the publication of the outbox table")
    slot: SlotName = Field(default="outbox", description="name of the logical replication slot")
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="least severe events that are logged"
    )
    log_format: Literal["auto", "json", "console"] = Field(
        default="auto", description="how events are logged; auto: console on a terminal, else json"
    )

    @field_validator("database_url", "replication_url")
    @classmethod
    def _must_be_a_conninfo(cls, value: SecretStr | None) -> SecretStr | None:
        from psycopg import ProgrammingError
        from psycopg.conninfo import conninfo_to_dict

        if value is not None:
            try:
                conninfo_to_dict(value.get_secret_value())
            except ProgrammingError:
                # The parser's own message can quote a part of the string, and so of the password.
                raise ValueError("not a libpq connection string or postgresql:// URL") from None
        return value

    @property
    def replication_dsn(self) -> str:
        return (self.replication_url or self.database_url).get_secret_value()

    @property
    def database_dsn(self) -> str:
        return self.database_url.get_secret_value()


class BrokerTls(BaseModel):
    """For amqps:// and rediss://. Without any, the system's authorities vouch for the broker's certificate."""

    broker_ca_file: Path | None = Field(default=None, description="authorities that may sign the broker's certificate")
    broker_certificate_file: Path | None = Field(default=None, description="certificate to show to the broker")
    broker_key_file: Path | None = Field(default=None, description="its private key, where it is a file of its own")

    @property
    def broker_tls(self) -> TlsOptions:
        ca_file, certificate_file, key_file = (
            None if file is None else str(file)
            for file in (self.broker_ca_file, self.broker_certificate_file, self.broker_key_file)
        )
        return TlsOptions(ca_file, certificate_file, key_file)


class ServiceSettings(BrokerTls, DatabaseSettings):
    """What the relay and the scheduler have in common."""

    broker_url: SecretStr = Field(description="kombu URL of the broker: amqp://, amqps://, redis://, ...")
    name: Name = Field(
        default_factory=lambda: f"{socket.gethostname()[:40]}-{os.getpid()}",
        description="name of this process in logs and in outbox_worker; default: host and pid",
    )
    send_timeout_seconds: PositiveSeconds = Field(
        default=10, description="how long the broker may take to confirm one message"
    )
    connect_timeout_seconds: PositiveSeconds = Field(default=5, description="how long one connection attempt may take")
    shutdown_timeout_seconds: Seconds = Field(
        default=20, description="how long a drain may take after SIGTERM before the rest is handed over"
    )
    max_attempts: int = Field(default=5, ge=1, description="attempts before a refused message is buried")
    backoff_seconds: PositiveSeconds = Field(
        default=120, description="backoff after the first failure; doubles each time"
    )
    max_backoff_seconds: PositiveSeconds = Field(default=3600, description="longest backoff")
    retry_rules: tuple[RetryRule, ...] = Field(
        default=(), description="overrides by message type: [[retry_rules]] tables in the TOML file; first match wins"
    )
    reject_errors: tuple[str, ...] = Field(
        default=(),
        description="errors that bury a message at its first refusal, such as MessageTooLarge or NoRoute; JSON array",
    )
    archive: bool = Field(
        default=False, description="move delivered messages to outbox_archive instead of deleting them"
    )
    http_host: str = Field(default="127.0.0.1", description="address of /metrics, /healthz, /readyz and /status")
    http_port: int | None = Field(default=None, ge=0, le=65535, description="port of the HTTP endpoints; none: no HTTP")
    liveness_file: Path | None = Field(
        default=None, description="file touched while the service is healthy, for probes without HTTP"
    )
    labelled_types: tuple[str, ...] = Field(
        default=(), description="globs of event types that get a label of their own in metrics; JSON array"
    )
    statsd_address: str | None = Field(
        default=None, description="host:port of a StatsD agent that gets the metrics over UDP; none: no StatsD"
    )
    statsd_flavor: Literal["plain", "dogstatsd"] = Field(
        default="plain", description="how labels are sent to StatsD: as parts of the name, or as tags"
    )
    statsd_prefix: str = Field(
        default="", max_length=100, pattern=r"^[A-Za-z0-9_.-]*$", description="what StatsD names begin with"
    )
    statsd_tags: tuple[Annotated[str, Field(max_length=200, pattern=r"^[^\s,|#]+$")], ...] = Field(
        default=(), max_length=4, description='tags of every metric, such as ["env:prod"]; dogstatsd only; JSON array'
    )
    statsd_interval_seconds: PositiveSeconds = Field(default=10, description="how often metrics are sent to StatsD")
    sentry_dsn: SecretStr | None = Field(default=None, description="where unexpected errors are reported")

    @field_validator("statsd_address")
    @classmethod
    def _must_be_host_and_port(cls, value: str | None) -> str | None:
        if value is not None:
            _split_address(value)
        return value

    @field_validator("statsd_tags")
    @classmethod
    def _only_dogstatsd_has_tags(cls, value: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        if value and info.data.get("statsd_flavor") == "plain":
            raise ValueError("plain StatsD has no tags: set statsd_flavor to dogstatsd")
        return value

    @property
    def statsd_target(self) -> tuple[str, int] | None:
        return None if self.statsd_address is None else _split_address(self.statsd_address)

    @field_validator("reject_errors")
    @classmethod
    def _must_be_errors_we_know(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        refusals = [name for name, policy in POLICIES.items() if policy.kind is FailureKind.FAILED]
        if unknown := [name for name in value if name not in refusals]:
            raise ValueError(f"no refusal is called {', '.join(unknown)}; there are {', '.join(refusals)}")
        return value


class RelaySettings(ServiceSettings):
    """The cdc-relay."""

    window_messages: int = Field(default=5000, ge=1, description="messages in flight at most")
    window_bytes: int = Field(default=64 * 1024 * 1024, ge=1, description="bytes in flight at most")
    hold_seconds: Seconds = Field(
        default=5, description="how long messages are held during a broker outage before they go to the scheduler"
    )
    status_interval_seconds: PositiveSeconds = Field(
        default=1, le=30, description="how often the confirmed position is reported to PostgreSQL"
    )
    silence_timeout_seconds: PositiveSeconds = Field(
        default=30, description="a replication connection that is silent for so long, though asked, is given up"
    )
    standby_poll_seconds: PositiveSeconds = Field(
        default=0.5, description="how often a standby relay looks whether the slot is free"
    )
    failover_slot: bool = Field(default=False, description="create the slot with failover = true (PostgreSQL 17+)")


class SchedulerSettings(ServiceSettings):
    """The retry-scheduler."""

    batch_size: int = Field(default=500, ge=1, le=10_000, description="rows claimed at once, at most")
    lease_seconds: PositiveSeconds = Field(
        default=60,
        validate_default=True,
        description="how long claimed rows are kept from other schedulers if this one dies",
    )
    poll_seconds: PositiveSeconds = Field(default=1, description="longest sleep between two looks at the table")
    broker_outage_cooldown_seconds: PositiveSeconds = Field(
        default=30, description="how long rows wait after a broker outage; no attempt is spent"
    )
    archive_retention_seconds: PositiveSeconds | None = Field(
        default=None, description="how long delivered messages are kept in outbox_archive; none: for ever"
    )
    dead_letter_retention_seconds: PositiveSeconds | None = Field(
        default=None, description="how long dead letters are kept; none: for ever"
    )
    event_retention_seconds: PositiveSeconds | None = Field(
        default=None,
        description="how long the events of a stream are kept, all but its newest; none: for ever",
    )
    inbox_retention_seconds: PositiveSeconds = Field(
        default=14 * 86_400,
        description="how long a consumer's inbox knows an event; longer than any message can come back",
    )

    @field_validator("lease_seconds")
    @classmethod
    def _must_outlast_a_send(cls, value: float, info: ValidationInfo) -> float:
        # A row is sent only if the answer can come while the lease holds.
        if value <= info.data.get("send_timeout_seconds", 0):
            raise ValueError("must be longer than send_timeout_seconds")
        return value


class RepairSettings(DatabaseSettings):
    """The commands that show messages."""

    redactor: str | None = Field(
        default=None,
        min_length=1,
        description="dotted path of the function that says what operators may see of a payload; see outrider/operations/redaction.py",
    )


class WorkerSettings(ServiceSettings):
    """
    A worker. It consumes; what only those who send need (retries, archive, ...) means nothing to it, and a database is
    for its inbox and its presence alone.
    """

    database_url: SecretStr = Field(
        default_factory=lambda: SecretStr(""),
        description="libpq connection string of the database with the outbox tables, to show presence there; optional",
    )
    prefetch: int = Field(default=50, ge=1, le=65535, description="messages held at a time, per consumer")
    threads: int = Field(default=8, ge=1, le=1000, description="plain functions that run at a time")
    exchange: Name = Field(default="amq.topic", description="where events are published, for consumers that name none")
    declare: bool = Field(default=True, description="make missing queues and exchanges, or only check that they exist")
    inbox_database: str | None = Field(
        default=None,
        min_length=1,
        description="package.module:attribute (a pool, engine or sessionmaker) or a Django alias, for consumers with "
        "inbox=True; default: a connection to database_url for each message",
    )

    @classmethod
    def flags(cls) -> frozenset[str]:
        """The names of the settings that a worker looks at."""
        of_senders = {"send_timeout_seconds", "max_attempts", "backoff_seconds", "max_backoff_seconds", "retry_rules"}
        of_senders |= {"reject_errors", "archive", "labelled_types", "replication_url", "publication", "slot"}
        return frozenset(map(setting_name, cls.model_fields)) - of_senders


def setting_name(field: str) -> str:
    """The name by which users know a field."""
    return "schema" if field in ("schema_name", "outrider_schema") else field


KNOWN_SETTINGS = frozenset(
    setting_name(field)
    for model in (RelaySettings, SchedulerSettings, WorkerSettings, RepairSettings)
    for field in model.model_fields
)


def _split_address(address: str) -> tuple[str, int]:
    try:
        parts = urlsplit(f"//{address}")
        host, port = parts.hostname, parts.port
    except ValueError:  # a port that is none, or half an IPv6 address
        host = port = None
    if not host or not port or parts.netloc != address or "@" in address:
        raise ValueError("must be host:port, such as 127.0.0.1:8125 or [::1]:8125")
    return host, port
