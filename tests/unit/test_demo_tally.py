"""The demo reports a loss, a duplicate and a delivered rollback if there is one."""

from __future__ import annotations

import pytest

from outrider.demo.scenario import DemoResult
from outrider.demo.screen import sparkline
from outrider.demo.tally import DeliveryTally, percentile


def result_of(tally: DeliveryTally, orders: int) -> DemoResult:
    return DemoResult(tally.figures(), orders=orders, drained_seconds=0)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def commit(tally: DeliveryTally, *event_ids: str) -> None:
    for event_id in event_ids:
        tally.placing(event_id)
        tally.committed(event_id)


def test_the_result_is_lossless_if_every_committed_message_arrived() -> None:
    tally = DeliveryTally()
    commit(tally, "a", "b")
    tally.arrived("a")
    assert not tally.is_complete()
    assert result_of(tally, orders=2).as_json()["lost"] == 1
    tally.arrived("b")
    assert tally.is_complete()
    assert result_of(tally, orders=2).is_lossless


def test_a_message_may_arrive_before_its_commit_returns() -> None:
    tally = DeliveryTally()
    tally.placing("a")
    tally.arrived("a")
    tally.committed("a")
    assert result_of(tally, orders=1).is_lossless


def test_a_missing_message_is_a_loss() -> None:
    tally = DeliveryTally()
    commit(tally, "a")
    assert not result_of(tally, orders=1).is_lossless
    assert result_of(tally, orders=1).as_json()["lost"] == 1


def test_a_delivered_message_of_a_rolled_back_transaction_is_reported() -> None:
    tally = DeliveryTally()
    tally.placing("a")
    tally.rolled_back("a")
    assert result_of(tally, orders=0).is_lossless
    tally.arrived("a")
    assert not result_of(tally, orders=0).is_lossless


def test_a_committed_order_without_a_message_is_a_loss() -> None:
    tally = DeliveryTally()
    commit(tally, "a")
    tally.arrived("a")
    assert not result_of(tally, orders=2).is_lossless


def test_a_duplicate_is_counted_and_is_not_a_loss() -> None:
    tally = DeliveryTally()
    commit(tally, "a")
    tally.arrived("a")
    tally.arrived("a")
    assert tally.figures().duplicates == 1
    assert result_of(tally, orders=1).is_lossless


def test_messages_affected_by_the_outage_are_counted_separately(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock()
    monkeypatch.setattr("outrider.demo.tally.time.monotonic", clock)
    tally = DeliveryTally()
    commit(tally, "before", "in flight")
    clock.now = 0.001
    tally.arrived("before")
    tally.broker_killed()
    clock.now = 1.0
    commit(tally, "during")
    clock.now = 2.0
    tally.broker_back()
    commit(tally, "behind the backlog")
    clock.now = 2.5
    for event_id in ("during", "behind the backlog", "in flight"):
        tally.arrived(event_id)
    clock.now = 3.0
    commit(tally, "after")
    clock.now = 3.002
    tally.arrived("after")
    figures = tally.figures()
    assert figures.outage_messages == 3
    assert figures.outage_max_ms == pytest.approx(2500)
    assert figures.p50_ms == pytest.approx(1)
    assert figures.p99_ms == pytest.approx(2)


@pytest.mark.parametrize(("percent", "value"), [(50, 50), (99, 99), (1, 1)])
def test_percentiles_are_measured_values(percent: int, value: int) -> None:
    assert percentile(list(range(1, 101)), percent) == value
    assert percentile([], percent) is None
    assert percentile([7.0], percent) == 7.0


def test_an_outage_is_a_gap_in_the_sparkline() -> None:
    assert sparkline([8, 0, 1, 4]) == "█ ▁▄"
    assert sparkline([]) == ""
