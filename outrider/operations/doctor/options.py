"""
What is examined: settings, as the services have them, and what an operator can ask beyond.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pydantic import Field, SecretStr

from outrider.settings.models import BrokerTls, DatabaseSettings, PositiveSeconds


class DoctorSettings(BrokerTls, DatabaseSettings):
    """The broker is left out where it has no URL."""

    broker_url: SecretStr | None = Field(default=None, description="kombu URL of the broker; none: it is not examined")
    send_timeout_seconds: PositiveSeconds = Field(
        default=10, description="as the services have it: how long the broker may take to confirm one message"
    )
    connect_timeout_seconds: PositiveSeconds = Field(default=5, description="how long one connection attempt may take")
    status_interval_seconds: PositiveSeconds = Field(
        default=1, le=30, description="as the relay has it: how often it reports to PostgreSQL"
    )


@dataclass(frozen=True, slots=True)
class DoctorOptions:
    roles: Mapping[str, str] = field(default_factory=dict)
    """Role by job; jobs that are not named are looked for under the names `outbox_<job>`."""
    exchanges: tuple[str, ...] = ()
    """Exchanges that must exist, beside those of pending rows."""
    longest_transaction_seconds: float = 300.0
