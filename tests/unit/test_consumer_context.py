"""The context of a message is restored around its handler, and messages that the handler publishes continue it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import sentry_sdk
import structlog
from opentelemetry import trace

from outrider.consumer.context import report_to_sentry, restored_context
from outrider.delivery.broker_message import LOG_CONTEXT_HEADER
from outrider.producer import Context, get_tracking_ids, tracking
from tests.unit.test_consumer_definition import make_delivery

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"


@pytest.fixture
def sentry_events() -> Iterator[list[Any]]:
    events: list[Any] = []

    def keep(event: Any, hint: Any) -> None:
        events.append(event)

    with sentry_sdk.isolation_scope(), sentry_sdk.new_scope() as scope:
        client = sentry_sdk.Client(
            dsn="https://key@sentry.invalid/1",
            before_send=keep,
            default_integrations=False,
            auto_session_tracking=False,
        )
        scope.set_client(client)
        yield events


def test_messages_that_the_handler_publishes_continue_tracking_ids_and_traces() -> None:
    delivery = make_delivery(tracking_ids=("a", "b"), headers={"traceparent": PARENT})
    with restored_context(delivery, "billing"):
        assert get_tracking_ids() == ("a", "b")
        assert f"{trace.get_current_span().get_span_context().trace_id:032x}" == TRACE
        headers = Context().headers("c")
    assert headers["tracking_ids"] == ["a", "b", "c"]
    assert headers["traceparent"].startswith(f"00-{TRACE}-")
    assert get_tracking_ids() == ()
    assert not trace.get_current_span().get_span_context().is_valid


def test_a_tracking_block_around_the_worker_is_not_part_of_its_messages_chains() -> None:
    with tracking("the program"), restored_context(make_delivery(tracking_ids=("a",)), "billing"):
        assert get_tracking_ids() == ("a",)


def test_log_lines_of_the_handler_have_the_message_ids_and_the_producers_log_context() -> None:
    structlog.contextvars.clear_contextvars()
    delivery = make_delivery(event_id="e-1", headers={LOG_CONTEXT_HEADER: {"customer": 7, "event_id": "not this"}})
    with restored_context(delivery, "billing"):
        bound = structlog.contextvars.get_contextvars()
    assert bound == {"customer": 7, "consumer": "billing", "event_id": "e-1", "event_type": "order.placed"}
    structlog.contextvars.clear_contextvars()


def test_sentry_continues_the_trace_and_receives_the_error_of_a_buried_message(sentry_events: list[Any]) -> None:
    delivery = make_delivery(headers={"sentry-trace": f"{TRACE}-00f067aa0ba902b7-1"})
    with restored_context(delivery, "billing"):
        assert Context().headers("c")["sentry-trace"].startswith(TRACE)
        report_to_sentry(ValueError("buried"))
    (event,) = sentry_events
    assert event["exception"]["values"][0]["value"] == "buried"
    assert event["contexts"]["trace"]["trace_id"] == TRACE
