"""
Context: headers that connect a message to the work that published it, for tracing.

Added where the application has imported the library (nothing is imported for it):

    sentry-trace, baggage          Sentry's current trace
    traceparent, tracestate        W3C trace context, from OpenTelemetry's configured propagators
    tracking_ids                   the ids of the messages that led to this one, and its own id last

structlog's context variables are stored in the column `context`; the services bind them while they publish the message,
so that their log lines contain them. This is off by default, because the variables can hold anything.

If a library raises an exception, or gives what a message cannot carry (NUL, a lone surrogate, NaN), it is left out and
the publish goes on.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NamedTuple
from uuid import uuid4

from outrider.producer.encoding import check_json, check_text

TRACKING_HEADER = "tracking_ids"

_tracking_ids: ContextVar[tuple[str, ...]] = ContextVar("outbox_tracking_ids", default=())


@dataclass(frozen=True, slots=True)
class Context:
    """
    The context that messages carry.

    sentry         Sentry's trace and baggage
    opentelemetry  W3C trace context
    tracking       the chain of tracking ids
    structlog      structlog's context variables: True for all, or the names that may be stored
    """

    sentry: bool = True
    opentelemetry: bool = True
    tracking: bool = True
    structlog: bool | Collection[str] = False

    def headers(self, event_id: str) -> dict[str, Any]:
        """The headers that the context adds to a message with this id."""
        return self.now().headers(event_id)

    def now(self) -> CurrentContext:
        """The context at this moment, which many messages can share."""
        headers: dict[str, Any] = {}
        for wanted, add in ((self.sentry, _add_sentry), (self.opentelemetry, _add_opentelemetry)):
            if wanted:
                with suppress(Exception):
                    add(headers)
        # They may come from a request. What a message cannot carry is left out: tracing must not fail a publish.
        if headers:
            headers = {name: value for name, value in headers.items() if _is_storable(value)}
        return CurrentContext(headers, get_tracking_ids() if self.tracking else None, self.log_context())

    def log_context(self) -> str | None:
        """The `context` column: a JSON object, or None where there are no variables."""
        library = sys.modules.get("structlog.contextvars")
        if not self.structlog or library is None:
            return None
        bound: Mapping[str, Any] = library.get_contextvars()
        if not isinstance(self.structlog, bool):
            bound = {name: value for name, value in bound.items() if name in self.structlog}
        if not bound:
            return None
        with suppress(Exception):
            text = json.dumps(dict(bound), default=str, skipkeys=True, allow_nan=False)
            check_json("the log context", text)
            return text
        return None


class CurrentContext(NamedTuple):
    """The context that all messages of one call share."""

    shared: dict[str, Any]
    chain: tuple[str, ...] | None
    """None: not tracked."""
    log: str | None

    def headers(self, event_id: str) -> dict[str, Any]:
        return self.shared if self.chain is None else {**self.shared, TRACKING_HEADER: [*self.chain, event_id]}

    def log_context(self) -> str | None:
        return self.log


ALL_BUT_LOGS = Context()
"""The default: everything but structlog's variables."""


@contextmanager
def tracking(source: Sequence[str] | Mapping[str, Any] | str | None = None) -> Iterator[tuple[str, ...]]:
    """
    Messages that are published inside the block carry the tracking ids of `source`, after those of the block around it.

    `source` is the headers of the message that is being handled, its tracking ids, or one id; without it, a new id.
    An id that the chain has already is not repeated.
    """
    if source is None:
        source = str(uuid4())
    elif isinstance(source, Mapping):
        source = source.get(TRACKING_HEADER) or ()
    added = (source,) if isinstance(source, str) else map(str, source)
    with continued_chain(tuple(dict.fromkeys((*get_tracking_ids(), *added)))) as chain:
        yield chain


@contextmanager
def continued_chain(chain: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Messages that are published inside the block carry exactly this chain. For a worker that handles a message."""
    token = _tracking_ids.set(chain)
    try:
        yield chain
    finally:
        _tracking_ids.reset(token)


def get_tracking_ids() -> tuple[str, ...]:
    """The tracking ids of the current block, the oldest first; empty outside of one."""
    return _tracking_ids.get()


def _is_storable(value: Any) -> bool:
    try:
        check_text("a header", value, 0)
    except (TypeError, ValueError):
        return False
    return True


def _add_sentry(headers: dict[str, Any]) -> None:
    sentry = sys.modules.get("sentry_sdk")
    if sentry is None or not sentry.is_initialized():
        return
    if trace := sentry.get_traceparent():
        headers["sentry-trace"] = trace
    if baggage := sentry.get_baggage():
        headers["baggage"] = baggage


def _add_opentelemetry(headers: dict[str, Any]) -> None:
    if "opentelemetry" not in sys.modules:
        return
    from opentelemetry.propagate import inject

    inject_into: Callable[[dict[str, str]], None] = inject
    carrier: dict[str, str] = {}
    inject_into(carrier)
    # Sentry and OpenTelemetry both use the W3C baggage header, which is a list of members.
    if "baggage" in carrier and "baggage" in headers:
        carrier["baggage"] = f"{headers['baggage']},{carrier['baggage']}"
    headers.update(carrier)
