"""The row of an event, and the errors for wrong values."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime, timedelta, timezone
from functools import reduce
from operator import or_
from typing import Any
from uuid import RFC_4122, UUID

import pytest

from outrider import Event
from outrider.producer.event import parse_event_ids, split_aggregate
from outrider.producer.row import is_delayed, to_columns


def row(**fields: Any) -> dict[str, Any]:
    return Event(**{"event_type": "order.placed", "payload": {}, **fields}).row(exchange="shop")


def test_an_event_goes_to_the_outboxs_exchange_by_its_type() -> None:
    made = row()
    assert (made["exchange"], made["routing_key"]) == ("shop", "order.placed")
    assert made["ordering_key"] is None
    assert made["headers"] == "{}"
    assert not is_delayed(made)


def test_an_empty_routing_key_and_exchange_are_kept() -> None:
    made = row(routing_key="", exchange="")
    assert (made["exchange"], made["routing_key"]) == ("", "")


@pytest.mark.parametrize("aggregate", [("order", 42), "order:42"])
def test_the_aggregate_is_the_default_ordering_key_and_is_in_the_headers(aggregate: Any) -> None:
    made = row(aggregate=aggregate, headers={"tenant": "a"})
    assert (made["aggregate_type"], made["aggregate_id"], made["ordering_key"]) == ("order", "42", "order:42")
    assert json.loads(made["headers"]) == {"aggregate_type": "order", "aggregate_id": "42", "tenant": "a"}


def test_none_as_ordering_key_means_no_order() -> None:
    assert row(aggregate=("order", 42), ordering_key=None)["ordering_key"] is None


def test_a_given_ordering_key_replaces_the_aggregate() -> None:
    assert row(aggregate=("order", 42), ordering_key="customer:7")["ordering_key"] == "customer:7"


def test_a_delayed_message_has_no_default_ordering_key() -> None:
    made = row(aggregate=("order", 42), deliver_after=60)
    assert made["ordering_key"] is None
    assert is_delayed(made)


def test_a_delayed_message_cannot_be_ordered() -> None:
    with pytest.raises(ValueError, match="cannot be ordered"):
        row(ordering_key="order:42", deliver_after=60)


@pytest.mark.parametrize("when", [90, 90.0, timedelta(minutes=1.5), "90s", "1m30s"])
def test_a_duration_is_added_to_the_databases_clock(when: Any) -> None:
    made = row(deliver_after=when)
    assert (made["deliver_at"], made["deliver_in_seconds"]) == (None, "90.0")
    made = row(expires=when)
    assert (made["expires_at"], made["expires_in_seconds"]) == (None, "90.0")
    assert row(deliver_after="0s")["deliver_in_seconds"] == "0.0"


IN_A_MINUTE = datetime.now(UTC) + timedelta(minutes=1)


@pytest.mark.parametrize(
    ("deliver_after", "expires"),
    [
        (60, 59),
        ("1h", "1h"),
        (IN_A_MINUTE, IN_A_MINUTE),
        ("1h", IN_A_MINUTE),
        (datetime(2100, 1, 1, tzinfo=UTC), "90s"),
    ],
)
def test_a_message_that_would_expire_before_its_delivery_is_refused(deliver_after: Any, expires: Any) -> None:
    with pytest.raises(ValueError, match="expires must be later than deliver_after"):
        row(deliver_after=deliver_after, expires=expires)


def test_a_message_may_expire_after_its_delivery() -> None:
    assert row(deliver_after="1m", expires="1h")["expires_in_seconds"] == "3600.0"
    in_a_minute = datetime.now(UTC) + timedelta(minutes=1)  # of this test: a run takes longer than that
    assert row(deliver_after=5, expires=in_a_minute)["expires_at"] == in_a_minute.isoformat()


def test_a_datetime_is_written_in_utc() -> None:
    made = row(expires=datetime(2030, 1, 1, 2, tzinfo=timezone(timedelta(hours=2))))
    assert made["expires_at"] == datetime(2030, 1, 1, tzinfo=UTC).isoformat()


def test_a_given_event_id_is_kept_and_the_default_is_random() -> None:
    given = UUID("0190a0a0-0000-7000-8000-000000000001")
    assert row(event_id=given)["event_id"] == row(event_id=str(given).upper())["event_id"] == str(given)
    assert UUID(row()["event_id"]).version == 4


def test_of_many_event_ids_the_missing_ones_are_random_uuids_of_version_4() -> None:
    given = UUID("0f3a7f6e-54a1-4c73-8a6b-3f8f2d1f6d11")
    made = parse_event_ids([None, given, str(given), *[None] * 2000])
    assert made[1] == made[2] == given
    random = [made[0], *made[3:]]
    assert len(set(random)) == len(random)
    assert {(each.version, each.variant) for each in random} == {(4, RFC_4122)}
    varying = reduce(or_, (each.int ^ random[0].int for each in random))
    assert varying.bit_count() == 122  # every bit but those of version and variant


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"event_type": ""}, ValueError),
        ({"event_type": 7}, TypeError),
        ({"event_type": "a\0b"}, ValueError),
        ({"routing_key": "ä" * 128}, ValueError),
        ({"exchange": "x" * 256}, ValueError),
        ({"ordering_key": ""}, ValueError),
        ({"dedup_key": "x" * 1001}, ValueError),
        ({"aggregate": "order"}, ValueError),
        ({"aggregate": ("order",)}, TypeError),
        ({"aggregate": ("a:b", 1)}, ValueError),
        ({"aggregate": ("order", "")}, ValueError),
        ({"aggregate": 42}, TypeError),
        ({"aggregate": ("order", "x" * 1000)}, ValueError),
        ({"deliver_after": -1}, ValueError),
        ({"deliver_after": math.nan}, ValueError),
        ({"expires": True}, TypeError),
        ({"expires": "tomorrow"}, ValueError),
        ({"expires": datetime(2030, 1, 1)}, ValueError),
        ({"event_id": "not a uuid"}, ValueError),
        ({"headers": {"x": object()}}, TypeError),
        ({"payload": object()}, TypeError),
    ],
)
def test_values_that_the_database_or_the_broker_would_refuse_raise_an_error(
    fields: Any, error: type[Exception]
) -> None:
    with pytest.raises(error):
        row(**fields)


def test_a_column_that_is_the_same_for_all_is_sent_once() -> None:
    columns = to_columns([row(payload=1), row(payload=2, dedup_key="k")])
    assert (columns["exchange"], columns["first_exchange"]) == ([], "shop")
    assert columns["aggregate_id"] == []
    assert columns["dedup_key"] == [None, "k"]
    assert columns["payload"] == [b"1", b"2"]


def test_an_aggregates_id_may_contain_colons() -> None:
    assert split_aggregate("order:a:b") == ("order", "a:b")
