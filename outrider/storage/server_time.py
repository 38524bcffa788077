"""
Server time: microseconds since 2000-01-01 UTC, the unit in which PostgreSQL stores and sends times.

Row columns, commit times and the clock in every replication message are server times, so they compare as plain ints.
Pure conversions: nothing here reads a clock.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

_EPOCH: Final = datetime(2000, 1, 1, tzinfo=UTC)
_EPOCH_UNIX_SECONDS: Final = int(_EPOCH.timestamp())
_MICROSECOND: Final = timedelta(microseconds=1)
_EARLIEST: Final = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND
_LATEST: Final = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND


def to_datetime(server_time: int) -> datetime:
    """The datetime in UTC. Times outside the years 1 to 9999 (also ±infinity) become the nearest datetime."""
    return _EPOCH + timedelta(microseconds=min(max(server_time, _EARLIEST), _LATEST))


def from_datetime(aware: datetime) -> int:
    """The server time of a datetime that has a time zone."""
    return (aware - _EPOCH) // _MICROSECOND


def to_unix_seconds(server_time: int) -> int:
    """Whole seconds since 1970-01-01 UTC."""
    return server_time // 1_000_000 + _EPOCH_UNIX_SECONDS


def from_unix_nanoseconds(nanoseconds: int) -> int:
    """The server time of a reading of time.time_ns()."""
    return nanoseconds // 1000 - _EPOCH_UNIX_SECONDS * 1_000_000
