"""
RelaySettings: the settings of cdc-relay.
"""

from __future__ import annotations

from pydantic import Field

from outrider.settings.database import PositiveSeconds, Seconds
from outrider.settings.service import ServiceSettings


class RelaySettings(ServiceSettings):
    window_messages: int = Field(default=5000, ge=1, description="largest number of messages in flight")
    window_bytes: int = Field(default=64 * 1024 * 1024, ge=1, description="largest number of bytes in flight")
    hold_seconds: Seconds = Field(
        default=5, description="how long messages are held in a broker outage before they are left to the scheduler"
    )
    status_interval_seconds: PositiveSeconds = Field(
        default=1, le=30, description="how often the confirmed position is reported to PostgreSQL"
    )
    silence_timeout_seconds: PositiveSeconds = Field(
        default=30, description="reconnect when PostgreSQL has not answered on the replication connection for so long"
    )
    standby_poll_seconds: PositiveSeconds = Field(
        default=0.5, description="how often a standby relay tries to take the slot"
    )
    broker_check_seconds: Seconds = Field(
        default=30, description="how often a standby relay tries to reach the broker, for its readiness; 0: never"
    )
    failover_slot: bool = Field(default=False, description="create the slot with failover = true (PostgreSQL 17+)")
