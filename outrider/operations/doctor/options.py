"""
The settings of the doctor (as the services have them) and the options of one examination.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pydantic import Field, SecretStr

from outrider.settings.database import DatabaseSettings, PositiveSeconds
from outrider.settings.service import BrokerTlsSettings


class DoctorSettings(BrokerTlsSettings, DatabaseSettings):
    """Without a broker_url the broker is not checked."""

    broker_url: SecretStr | None = Field(default=None, description="kombu URL of the broker; none: it is not checked")
    send_timeout_seconds: PositiveSeconds = Field(
        default=10, description="as in the services: how long the broker may take to confirm one message"
    )
    connect_timeout_seconds: PositiveSeconds = Field(default=5, description="how long one connection attempt may take")
    status_interval_seconds: PositiveSeconds = Field(
        default=1, le=30, description="as in the relay: how often it reports its position to PostgreSQL"
    )


@dataclass(frozen=True, slots=True)
class DoctorOptions:
    roles: Mapping[str, str] = field(default_factory=dict)
    """Role by job; the default of a job is the role `outbox_<job>`."""
    exchanges: tuple[str, ...] = ()
    """Exchanges that must exist, besides those of pending rows."""
    longest_transaction_seconds: float = 300.0
