"""The context of a publish, from the application through the relay to its log and to the wire."""

from __future__ import annotations

import pytest
import structlog
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, use_span

from outrider import Context, Outbox, tracking
from tests.fixtures.broker import Broker
from tests.fixtures.stage import Stage

pytestmark = pytest.mark.timeout(120)


def test_the_log_context_is_in_the_relays_log_and_the_trace_in_the_message(rabbit: Broker, stage: Stage) -> None:
    queue = rabbit.declare_queue()
    relay = stage.start_relay(rabbit.url)
    carrier = Outbox("", context=Context(structlog=("request_id",)))
    span = NonRecordingSpan(SpanContext(trace_id=0xABC, span_id=0xDEF, is_remote=True, trace_flags=TraceFlags(1)))
    with (
        stage.database.connect(autocommit=False) as connection,
        structlog.contextvars.bound_contextvars(request_id="r-1", card="4111"),
        use_span(span),
        tracking("checkout"),
    ):
        arrives = carrier.publish(connection, "order.placed", {}, routing_key=queue)
        lost = carrier.publish(connection, "order.placed", {}, routing_key=f"{queue}-that-is-not-there")
    refused = relay.wait_for_event("refused", deadline_seconds=60, event_id=str(lost.event_id))
    assert refused["request_id"] == "r-1"
    assert "4111" not in relay.output()
    [message] = rabbit.get_all(queue, 1, deadline_seconds=60)
    assert message.headers["traceparent"] == f"00-{0xABC:032x}-{0xDEF:016x}-01"
    assert message.headers["log_context"] == {"request_id": "r-1"}
    assert message.headers["tracking_ids"] == ["checkout", str(arrives.event_id)]
