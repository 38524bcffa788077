"""
SchedulerSettings: the settings of retry-scheduler.
"""

from __future__ import annotations

from pydantic import Field, ValidationInfo, field_validator

from outrider.settings.database import PositiveSeconds
from outrider.settings.service import ServiceSettings


class SchedulerSettings(ServiceSettings):
    batch_size: int = Field(default=500, ge=1, le=10_000, description="largest number of rows claimed at once")
    batch_bytes: int = Field(
        default=16 * 1024 * 1024,
        ge=1,
        description="largest number of bytes claimed at once; one row may be larger. At most twice as much is held",
    )
    lease_seconds: PositiveSeconds = Field(
        default=60,
        validate_default=True,
        description="how long a claim lasts; after that, other schedulers may claim the rows of one that was killed",
    )
    poll_seconds: PositiveSeconds = Field(default=1, description="longest pause between two searches for due rows")
    broker_outage_cooldown_seconds: PositiveSeconds = Field(
        default=30, description="how long rows wait after a broker outage; no attempt is spent"
    )
    archive_retention_seconds: PositiveSeconds | None = Field(
        default=None, description="how long delivered messages are kept in outbox_archive; none: for ever"
    )
    dead_letter_retention_seconds: PositiveSeconds | None = Field(
        default=None, description="how long dead letters are kept; none: for ever"
    )
    inbox_retention_seconds: PositiveSeconds = Field(
        default=14 * 86_400,
        description="how long consumers' inboxes remember an event; must be longer than a message can be redelivered",
    )

    @field_validator("lease_seconds")
    @classmethod
    def _must_outlast_a_send(cls, value: float, info: ValidationInfo) -> float:
        # A row is sent only if the answer can arrive before the lease ends.
        if value <= info.data.get("send_timeout_seconds", 0):
            raise ValueError("must be longer than send_timeout_seconds")
        return value
