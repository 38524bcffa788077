"""
Context: the trace, tracking ids and log context of a message, restored around its handler.

Messages that the handler publishes through the producer continue them. Sentry and OpenTelemetry are used only where the
application has imported (and, for Sentry, initialised) them. An error in one of these libraries does not fail the
handler. structlog's context holds the message's ids and the log context that its producer sent.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import structlog

from outrider.consumer.delivery import Delivery
from outrider.delivery.broker_message import LOG_CONTEXT_HEADER
from outrider.producer.context import continued_chain


@contextmanager
def restored_context(delivery: Delivery, consumer: str) -> Iterator[None]:
    """Restore the context of this message inside the block."""
    log_context = delivery.headers.get(LOG_CONTEXT_HEADER)
    bound = {str(name): value for name, value in log_context.items()} if isinstance(log_context, dict) else {}
    bound |= {"consumer": consumer, "event_id": delivery.event_id, "event_type": delivery.event_type}
    with ExitStack() as stack:
        stack.enter_context(structlog.contextvars.bound_contextvars(**bound))
        stack.enter_context(continued_chain(delivery.tracking_ids))
        if "opentelemetry" in sys.modules:
            with suppress(Exception):
                _attach_opentelemetry(stack, delivery)
        if "sentry_sdk" in sys.modules:
            with suppress(Exception):
                _continue_sentry(stack, delivery, consumer)
        yield


def report_to_sentry(error: BaseException) -> None:
    """Report the error of a buried message to the application's Sentry, if it uses Sentry."""
    sentry: Any = sys.modules.get("sentry_sdk")
    if sentry is not None:
        with suppress(Exception):
            if sentry.is_initialized():
                sentry.capture_exception(error)


def _attach_opentelemetry(stack: ExitStack, delivery: Delivery) -> None:
    from opentelemetry import context
    from opentelemetry.propagate import extract

    carrier = {name: value for name, value in delivery.headers.items() if isinstance(value, str)}
    token = context.attach(extract(carrier))
    stack.callback(context.detach, token)


def _continue_sentry(stack: ExitStack, delivery: Delivery, consumer: str) -> None:
    import sentry_sdk

    if not sentry_sdk.is_initialized():
        return
    stack.enter_context(sentry_sdk.isolation_scope())
    carrier = {name: delivery.headers[name] for name in ("sentry-trace", "baggage") if name in delivery.headers}
    transaction = sentry_sdk.continue_trace(carrier, op="queue.process", name=consumer, source="task")
    stack.enter_context(sentry_sdk.start_transaction(transaction))
