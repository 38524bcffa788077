"""
ServiceSettings: what the relay, the scheduler and the worker have in common.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, ValidationInfo, field_validator
from pydantic_settings import NoDecode

from outrider.failures import POLICIES, FailureKind
from outrider.settings.database import DatabaseSettings, Name, PositiveSeconds, Seconds, Texts
from outrider.settings.lists import as_list
from outrider.settings.tls import TlsOptions

MOST_TAG_BYTES = 900
"""Of the StatsD tags: a line with them and with long labels must fit into one packet."""


class RetryRule(BaseModel):
    """Overrides how messages of some types are retried."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    match: str = Field(min_length=1, description="glob on the event type or task name")
    max_attempts: int | None = Field(default=None, ge=1)
    backoff_seconds: PositiveSeconds | None = None
    max_backoff_seconds: PositiveSeconds | None = None


class BrokerTlsSettings(BaseModel):
    """For amqps:// and rediss://. Without broker_ca_file, the system's CAs verify the broker's certificate."""

    broker_ca_file: Path | None = Field(
        default=None, description="CA certificates that may sign the broker's certificate"
    )
    broker_certificate_file: Path | None = Field(default=None, description="client certificate for the broker")
    broker_key_file: Path | None = Field(
        default=None, description="private key of the client certificate, if it is in a separate file"
    )

    @property
    def broker_tls(self) -> TlsOptions:
        ca_file, certificate_file, key_file = (
            None if file is None else str(file)
            for file in (self.broker_ca_file, self.broker_certificate_file, self.broker_key_file)
        )
        return TlsOptions(ca_file, certificate_file, key_file)


class ServiceSettings(BrokerTlsSettings, DatabaseSettings):
    broker_url: SecretStr = Field(
        description="URL of the broker: amqp://, amqps://, redis://, rediss:// or sentinel://"
    )
    name: Name = Field(
        default_factory=lambda: f"{socket.gethostname()[:40]}-{os.getpid()}",
        description="name of this process in logs and in outbox_worker; default: host name and pid",
    )
    send_timeout_seconds: PositiveSeconds = Field(
        default=10, description="how long the broker may take to confirm one message"
    )
    connect_timeout_seconds: PositiveSeconds = Field(default=5, description="how long one connection attempt may take")
    statement_timeout_seconds: PositiveSeconds = Field(
        default=20, description="how long one SQL statement may take; a longer one costs the service its connection"
    )
    shutdown_timeout_seconds: Seconds = Field(
        default=20, description="how long messages in flight may take to finish after SIGTERM"
    )
    max_attempts: int = Field(default=5, ge=1, description="attempts before a message becomes a dead letter")
    backoff_seconds: PositiveSeconds = Field(
        default=120, description="backoff after the first failure; doubles with each failure"
    )
    max_backoff_seconds: PositiveSeconds = Field(default=3600, description="longest backoff")
    retry_rules: tuple[RetryRule, ...] = Field(
        default=(), description="overrides by event type: [[retry_rules]] tables in the TOML file; the first match wins"
    )
    reject_errors: Texts = Field(
        default=(),
        description="errors that make a message a dead letter at once, such as MessageTooLarge or NoRoute",
    )
    declare: bool = Field(
        default=True, description="create a missing exchange (topic, durable) when an event is published to it"
    )
    archive: bool = Field(
        default=False, description="move delivered messages to outbox_archive instead of deleting them"
    )
    http_host: str = Field(
        default="127.0.0.1", description="address on which /metrics, /healthz, /readyz and /status listen"
    )
    http_port: int | None = Field(
        default=None, ge=0, le=65535, description="port of these HTTP endpoints; none: no HTTP"
    )
    liveness_file: Path | None = Field(
        default=None, description="file that is touched while the service is healthy, for probes without HTTP"
    )
    labelled_types: Texts = Field(default=(), description="globs of event types that get their own label in metrics")
    statsd_address: str | None = Field(
        default=None, description="host:port of a StatsD agent to which metrics are sent over UDP; none: no StatsD"
    )
    statsd_flavor: Literal["plain", "dogstatsd"] = Field(
        default="plain", description="how labels are sent to StatsD: plain as parts of the name, dogstatsd as tags"
    )
    statsd_prefix: str = Field(
        default="", max_length=100, pattern=r"^[A-Za-z0-9_.-]*$", description="prefix of StatsD names"
    )
    statsd_tags: Annotated[
        tuple[Annotated[str, Field(max_length=200, pattern=r"^[^\s,|#]+$")], ...], NoDecode, BeforeValidator(as_list)
    ] = Field(default=(), max_length=50, description="tags of every metric, such as env:prod; dogstatsd only")
    statsd_interval_seconds: PositiveSeconds = Field(default=10, description="how often metrics are sent to StatsD")
    sentry_dsn: SecretStr | None = Field(
        default=None, description="Sentry DSN to which unexpected errors are reported; none: no Sentry"
    )

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
        if len(",".join(value).encode()) > MOST_TAG_BYTES:
            raise ValueError(f"must be at most {MOST_TAG_BYTES} bytes together: every packet carries them")
        return value

    @property
    def statsd_target(self) -> tuple[str, int] | None:
        return None if self.statsd_address is None else _split_address(self.statsd_address)

    @field_validator("reject_errors")
    @classmethod
    def _must_be_known_errors(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        refusals = [name for name, policy in POLICIES.items() if policy.kind is FailureKind.FAILED]
        if unknown := [name for name in value if name not in refusals]:
            raise ValueError(f"unknown error {', '.join(unknown)}; known are {', '.join(refusals)}")
        return value


def _split_address(address: str) -> tuple[str, int]:
    try:
        parts = urlsplit(f"//{address}")
        host, port = parts.hostname, parts.port
    except ValueError:  # not a port, or an incomplete IPv6 address
        host = port = None
    if not host or not port or parts.netloc != address or "@" in address:
        raise ValueError("must be host:port, such as 127.0.0.1:8125 or [::1]:8125")
    return host, port
