"""Headers and log context from the tracing and logging libraries that the application uses."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest
import sentry_sdk
import structlog
from opentelemetry import baggage
from opentelemetry import context as otel_context
from opentelemetry.sdk.trace import TracerProvider

from outrider import Context, Event, get_tracking_ids, tracking

ONLY_TRACKING = Context(sentry=False, opentelemetry=False)
ONLY_SENTRY = Context(opentelemetry=False, tracking=False)
ONLY_OPENTELEMETRY = Context(sentry=False, tracking=False)


@pytest.fixture
def sentry() -> Iterator[None]:
    sentry_sdk.init(dsn=None, traces_sample_rate=1.0, default_integrations=False, auto_enabling_integrations=False)
    yield
    sentry_sdk.get_global_scope().set_client(None)


def test_a_message_outside_a_tracking_block_carries_its_own_id() -> None:
    assert ONLY_TRACKING.headers("a") == {"tracking_ids": ["a"]}


def test_a_message_published_in_a_tracking_block_carries_the_ids_of_the_block() -> None:
    with tracking(ONLY_TRACKING.headers("a")):
        with tracking(ONLY_TRACKING.headers("b")):
            assert get_tracking_ids() == ("a", "b")
            assert ONLY_TRACKING.headers("c") == {"tracking_ids": ["a", "b", "c"]}
        assert get_tracking_ids() == ("a",)
    assert get_tracking_ids() == ()


def test_a_tracking_block_can_start_with_any_id_or_with_none() -> None:
    with tracking("request-7") as chain:
        assert chain == ("request-7",)
    with tracking({"other": "header"}) as chain:
        assert chain == ()


def test_a_bare_tracking_block_begins_a_chain_with_a_new_id() -> None:
    with tracking() as first, tracking() as second:
        assert len(first) == 1
        assert second == (*first, second[1])
        assert UUID(second[1]) != UUID(first[0])
        assert ONLY_TRACKING.headers("c") == {"tracking_ids": [*second, "c"]}


def test_a_tracking_block_inside_another_appends_to_its_chain() -> None:
    with tracking("request-7"), tracking(["job-1", "request-7"]) as chain:
        assert chain == ("request-7", "job-1")


def test_sentrys_trace_is_in_the_headers(sentry: None) -> None:
    with sentry_sdk.start_transaction(name="work") as transaction:
        headers = ONLY_SENTRY.headers("a")
    assert headers["sentry-trace"].startswith(transaction.trace_id)
    assert f"sentry-trace_id={transaction.trace_id}" in headers["baggage"]


def test_sentry_that_is_not_initialised_adds_nothing() -> None:
    assert ONLY_SENTRY.headers("a") == {}


def test_opentelemetrys_trace_is_in_the_headers() -> None:
    with TracerProvider().get_tracer("test").start_as_current_span("work") as span:
        headers = ONLY_OPENTELEMETRY.headers("a")
    trace_id = f"{span.get_span_context().trace_id:032x}"
    assert headers["traceparent"].split("-")[1] == trace_id


def test_the_baggage_of_sentry_and_opentelemetry_is_merged(sentry: None) -> None:
    token = otel_context.attach(baggage.set_baggage("tenant", "a"))
    try:
        with sentry_sdk.start_transaction(name="work"):
            headers = Context(tracking=False).headers("a")
    finally:
        otel_context.detach(token)
    assert "sentry-trace_id=" in headers["baggage"]
    assert headers["baggage"].endswith(",tenant=a")


def test_an_exception_of_a_tracing_library_does_not_fail_the_publish(
    monkeypatch: pytest.MonkeyPatch, sentry: None
) -> None:
    monkeypatch.setattr(sentry_sdk, "get_traceparent", lambda: 1 / 0)
    assert Context(opentelemetry=False).headers("a") == {"tracking_ids": ["a"]}


def test_the_log_context_is_off_by_default_and_can_be_limited_to_some_names() -> None:
    with structlog.contextvars.bound_contextvars(request="r", user=object):
        assert Context().log_context() is None
        assert json.loads(Context(structlog=True).log_context() or "") == {"request": "r", "user": str(object)}
        assert json.loads(Context(structlog=("request",)).log_context() or "") == {"request": "r"}
        assert Context(structlog=("other",)).log_context() is None
    assert Context(structlog=True).log_context() is None


def test_an_events_own_headers_override_those_of_the_context() -> None:
    event = Event(event_type="x", payload={}, headers={"tracking_ids": ["mine"]})
    assert json.loads(event.row(exchange="", context=ONLY_TRACKING)["headers"]) == {"tracking_ids": ["mine"]}


@pytest.mark.parametrize("value", ["a\0b", "\ud800", math.nan])
def test_log_context_that_cannot_be_stored_is_left_out_and_fails_no_publish(value: Any) -> None:
    with structlog.contextvars.bound_contextvars(request={"agent": value}):
        assert Context(structlog=True).log_context() is None
        Event(event_type="x", payload={}).row(exchange="", context=Context(structlog=True))


def test_a_traced_header_that_cannot_be_stored_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def add(headers: dict[str, Any]) -> None:
        headers.update({"sentry-trace": "fine", "baggage": "a\0b"})

    monkeypatch.setattr("outrider.producer.context._add_sentry", add)
    headers = Context(opentelemetry=False, tracking=False).headers("id")
    assert headers == {"sentry-trace": "fine"}
