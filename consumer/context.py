"""
Context: the trace, tracking ids and log context of a message, around its handler.

What the handler publishes through `producer` carries them on. Sentry and OpenTelemetry are used where the application
has loaded (and, for Sentry, initialised) them; nothing is imported for it, and a library that fails does not fail the
handler. structlog's context holds the message's ids, and what its producer chose to send along.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import structlog

from outrider.consumer.delivery import Delivery
from outrider.delivery.broker_message import LOG_CONTEXT_HEADER
from outrider.producer.context import tracking


@contextmanager
def restored(delivery: Delivery, consumer: str) -> Iterator[None]:
    """Inside, work is done on behalf of this message."""
    sent_along = delivery.headers.get(LOG_CONTEXT_HEADER)
    bound = {str(name): value for name, value in sent_along.items()} if isinstance(sent_along, dict) else {}
    bound |= {"consumer": consumer, "event_id": delivery.event_id, "event_type": delivery.event_type}
    with ExitStack() as stack:
        stack.enter_context(structlog.contextvars.bound_contextvars(**bound))
        stack.enter_context(tracking(delivery.tracking_ids))
        if "opentelemetry" in sys.modules:
            with suppress(Exception):
                _attach_opentelemetry(stack, delivery)
        if "sentry_sdk" in sys.modules:
            with suppress(Exception):
                _continue_sentry(stack, delivery, consumer)
        yield


def report(error: BaseException) -> None:
    """Tell the application's Sentry, where there is one, of a message that is given up."""
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
