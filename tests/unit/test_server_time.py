"""Server time: conversions to and from datetimes and the Unix clock."""

from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from outrider.storage.server_time import from_datetime, from_unix_nanoseconds, to_datetime, to_unix_seconds

INFINITY = 2**63 - 1
DATETIMES = st.datetimes(timezones=st.just(UTC))


@given(DATETIMES)
def test_a_datetime_converts_to_a_server_time_and_back(moment: datetime) -> None:
    assert to_datetime(from_datetime(moment)) == moment


def test_the_epoch_is_the_year_2000() -> None:
    assert from_datetime(datetime(2000, 1, 1, 0, 0, 1, tzinfo=UTC)) == 1_000_000


def test_a_server_time_outside_the_years_of_datetime_becomes_the_nearest_datetime() -> None:
    assert to_datetime(INFINITY) == datetime.max.replace(tzinfo=UTC)
    assert to_datetime(-INFINITY - 1) == datetime.min.replace(tzinfo=UTC)


@given(st.datetimes(datetime(1970, 1, 1), timezones=st.just(UTC)))
def test_a_server_time_converts_to_the_unix_clock_and_back(moment: datetime) -> None:
    whole = moment.replace(microsecond=0)

    assert to_unix_seconds(from_datetime(moment)) == whole.timestamp()
    assert from_unix_nanoseconds(to_unix_seconds(from_datetime(moment)) * 10**9) == from_datetime(whole)
