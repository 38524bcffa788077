"""The protocol between relay and scheduler on the model: two rows of a key, one fault. `make model` searches more."""

from __future__ import annotations

import pytest

from tests.model.ownership import RULES, explore

AGAINST_DELAY_AND_DUPLICATES = {"catchup-check", "slot-handover", "own-claim"}
"""Rules that the promises of the model do not need."""


def test_no_interleaving_loses_a_row_breaks_the_order_or_gets_stuck() -> None:
    result = explore(rows=2, faults=1)
    assert result.violation is None, result.steps
    assert result.stuck is None
    assert result.states > 200_000


@pytest.mark.parametrize("rule", sorted(RULES.keys() - AGAINST_DELAY_AND_DUPLICATES))
def test_without_this_rule_the_order_can_break(rule: str) -> None:
    result = explore(rows=2, faults=1, off=[rule])
    assert result.violation is not None
    assert result.violation.startswith("order: row 1")
    assert result.steps


def test_a_missing_row_that_counts_as_gone_while_its_commit_waits_for_a_standby_breaks_the_order() -> None:
    """Without any fault: it is enough that the relay starts before the row is visible."""
    result = explore(rows=2, faults=0, off=["visibility-check"])
    assert result.steps == ["commit 0", "relay starts", "commit 1", "relay drops 0", "relay publishes 1"]


def test_an_unknown_rule_is_an_error() -> None:
    with pytest.raises(ValueError, match="unknown rules: no-such-rule"):
        explore(rows=1, faults=0, off=["no-such-rule"])
