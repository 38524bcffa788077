"""The retry policy: when a refused message is retried, and when it is buried."""

from __future__ import annotations

import pytest

from outrider.delivery.retry_policy import RetryPolicy
from outrider.failures import Failure, failure
from outrider.settings.scheduler import SchedulerSettings
from outrider.settings.service import RetryRule
from outrider.storage.decision import Burial, Decision, Retry
from tests.fixtures.messages import make_message


def default_policy(jitter: float = 0.0) -> RetryPolicy:
    settings = SchedulerSettings.model_construct()
    return RetryPolicy(
        settings.max_attempts, settings.backoff_seconds, settings.max_backoff_seconds, jitter=lambda: jitter
    )


@pytest.mark.parametrize(
    ("attempts", "shortest", "longest"), [(0, 120, 132), (1, 240, 252), (2, 480, 492), (3, 960, 972), (4, None, None)]
)
def test_the_defaults_double_from_two_minutes_and_bury_at_the_fifth_failure(
    attempts: int, shortest: float | None, longest: float | None
) -> None:
    assert default_policy(jitter=0.0).backoff("order.placed", attempts) == shortest
    assert default_policy(jitter=1.0).backoff("order.placed", attempts) == longest


def test_the_wait_is_never_longer_than_the_maximum_also_with_jitter() -> None:
    policy = RetryPolicy(max_attempts=1000, backoff_seconds=120, max_backoff_seconds=3600, jitter=lambda: 1.0)
    assert policy.backoff("order.placed", 5) == 3600
    assert policy.backoff("order.placed", 998) == 3600


def test_one_attempt_means_that_the_first_failure_buries() -> None:
    assert RetryPolicy(1, 120, 3600).backoff("order.placed", 0) is None


def test_the_first_rule_that_matches_wins_and_changes_only_what_it_names() -> None:
    rules = (
        RetryRule(match="order.*", max_attempts=2),
        RetryRule(match="order.placed", backoff_seconds=1),
        RetryRule(match="*.slow", backoff_seconds=10, max_backoff_seconds=15),
    )
    policy = RetryPolicy(5, 120, 3600, rules, jitter=lambda: 0.0)
    assert policy.backoff("order.placed", 0) == 120
    assert policy.backoff("order.placed", 1) is None
    assert policy.backoff("report.slow", 0) == 10
    assert policy.backoff("report.slow", 1) == 15
    assert policy.backoff("invoice.sent", 3) == 960


def test_rules_are_case_sensitive_as_event_types_are() -> None:
    policy = RetryPolicy(5, 120, 3600, (RetryRule(match="order.*", max_attempts=1),), jitter=lambda: 0.0)
    assert policy.backoff("Order.placed", 0) == 120


def test_jitter_spreads_messages_that_failed_together() -> None:
    policy = RetryPolicy(5, 120, 3600)
    waits = {policy.backoff("order.placed", 0) for _ in range(50)}
    assert len(waits) > 40
    assert all(wait is not None and 120 <= wait < 132 for wait in waits)


@pytest.mark.parametrize(
    ("attempts", "why", "decision"),
    [
        (0, failure("Nacked", "full"), Retry(1, "Nacked: full", 120)),
        (4, failure("NoRoute", "no queue"), Burial(1, "max attempts", "NoRoute: no queue", 1)),
        (0, failure("AccessRefused", "no"), Burial(1, "rejected", "AccessRefused: no", 1)),
        (0, failure("Undecodable", "bad"), Burial(1, "undecodable", "Undecodable: bad", 0)),
    ],
)
def test_a_failure_is_retried_until_its_attempts_are_used_up_or_buried_at_once(
    attempts: int, why: Failure, decision: Decision
) -> None:
    policy = RetryPolicy(5, 120, 3600, reject_errors=["AccessRefused"], jitter=lambda: 0.0)
    assert policy.decide(make_message(id=1, attempts=attempts), why) == decision


@pytest.mark.parametrize("error", ["NoRoute", "NotFound"])
def test_a_message_that_is_not_routed_is_retried_soon_and_not_buried_sooner(error: str) -> None:
    policy = default_policy(jitter=0.0)
    decisions = [policy.decide(make_message(attempts=attempts), failure(error, "x")) for attempts in range(5)]
    assert [decision.backoff_seconds for decision in decisions if isinstance(decision, Retry)] == [5, 30, 180, 960]
    assert isinstance(decisions[4], Burial)
    short = RetryPolicy(max_attempts=5, backoff_seconds=1, max_backoff_seconds=2, jitter=lambda: 0.0)
    first = short.decide(make_message(attempts=0), failure(error, "x"))
    assert isinstance(first, Retry)
    assert first.backoff_seconds == 1
