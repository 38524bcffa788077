"""The demo's books: they must not be kinder than the truth."""

from __future__ import annotations

import pytest

from outrider.demo.scenario import DemoResult
from outrider.demo.screen import sparkline
from outrider.demo.tally import DeliveryTally, percentile


def verdict(ledger: DeliveryTally, orders: int) -> DemoResult:
    return DemoResult(ledger.figures(), orders=orders, waiting=0, drained_seconds=0)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def commit(ledger: DeliveryTally, *event_ids: str) -> None:
    for event_id in event_ids:
        ledger.placing(event_id)
        ledger.committed(event_id)


def test_what_was_committed_and_arrived_keeps_the_promise() -> None:
    ledger = DeliveryTally()
    commit(ledger, "a", "b")
    ledger.arrived("a")
    assert not ledger.is_complete()
    assert ledger.figures().missing == 1
    ledger.arrived("b")
    assert ledger.is_complete()
    assert verdict(ledger, orders=2).kept


def test_a_message_may_arrive_before_its_commit_returns() -> None:
    ledger = DeliveryTally()
    ledger.placing("a")
    ledger.arrived("a")
    ledger.committed("a")
    assert verdict(ledger, orders=1).kept


def test_a_message_that_is_missing_breaks_it() -> None:
    ledger = DeliveryTally()
    commit(ledger, "a")
    assert not verdict(ledger, orders=1).kept
    assert verdict(ledger, orders=1).as_json()["lost"] == 1


def test_a_message_of_a_transaction_that_rolled_back_breaks_it() -> None:
    ledger = DeliveryTally()
    ledger.placing("a")
    ledger.rolled_back("a")
    assert verdict(ledger, orders=0).kept
    ledger.arrived("a")
    assert not verdict(ledger, orders=0).kept


def test_an_order_that_the_shop_did_not_notice_breaks_it() -> None:
    ledger = DeliveryTally()
    commit(ledger, "a")
    ledger.arrived("a")
    assert not verdict(ledger, orders=2).kept


def test_a_duplicate_is_counted_and_breaks_nothing() -> None:
    ledger = DeliveryTally()
    commit(ledger, "a")
    ledger.arrived("a")
    ledger.arrived("a")
    assert ledger.figures().duplicates == 1
    assert verdict(ledger, orders=1).kept


def test_messages_that_the_outage_touched_are_counted_apart_until_everything_caught_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock()
    monkeypatch.setattr("outrider.demo.tally.time.monotonic", clock)
    ledger = DeliveryTally()
    commit(ledger, "before", "in flight")
    clock.now = 0.001
    ledger.arrived("before")
    ledger.broker_killed()
    clock.now = 1.0
    commit(ledger, "during")
    clock.now = 2.0
    ledger.broker_back()
    commit(ledger, "behind the backlog")
    clock.now = 2.5
    for event_id in ("during", "behind the backlog", "in flight"):
        ledger.arrived(event_id)
    clock.now = 3.0
    commit(ledger, "after")
    clock.now = 3.002
    ledger.arrived("after")
    figures = ledger.figures()
    assert figures.outage_messages == 3
    assert figures.outage_max_ms == pytest.approx(2500)
    assert figures.p50_ms == pytest.approx(1)
    assert figures.p99_ms == pytest.approx(2)


@pytest.mark.parametrize(("percent", "value"), [(50, 50), (99, 99), (1, 1)])
def test_percentiles_are_values_that_were_measured(percent: int, value: int) -> None:
    assert percentile(list(range(1, 101)), percent) == value
    assert percentile([], percent) is None
    assert percentile([7.0], percent) == 7.0


def test_an_outage_is_a_gap_in_the_sparkline() -> None:
    assert sparkline([8, 0, 1, 4]) == "█ ▁▄"
    assert sparkline([]) == ""
