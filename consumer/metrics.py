"""Metrics of a worker; outrider.telemetry.metrics defines their names. Every method may be called from any thread."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from outrider.storage.decision import DEAD_LETTER_REASONS
from outrider.telemetry.metrics import (
    CONSUMER_ACTIVE,
    CONSUMER_DEAD_LETTERS,
    CONSUMER_HANDLER_SECONDS,
    CONSUMER_PROCESSED,
    CONSUMER_RECEIVED,
    CONSUMER_RETRIES,
    Spec,
)

STATUSES: Final = ("done", "duplicate", "retried", "requeued", *DEAD_LETTER_REASONS)


class ConsumerMetrics:
    """Registered with the process's registry. Label values are consumer names and delays: few, and known at start."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(spec: Spec) -> Counter:
            return Counter(spec.name, spec.help, spec.labels, registry=registry)

        def gauge(spec: Spec) -> Gauge:
            return Gauge(spec.name, spec.help, spec.labels, registry=registry)

        self._received = counter(CONSUMER_RECEIVED)
        self._processed = counter(CONSUMER_PROCESSED)
        self._retries = counter(CONSUMER_RETRIES)
        self._dead_letters = gauge(CONSUMER_DEAD_LETTERS)
        self._active = gauge(CONSUMER_ACTIVE)
        spec = CONSUMER_HANDLER_SECONDS
        self._seconds = Histogram(spec.name, spec.help, spec.labels, buckets=spec.buckets, registry=registry)
        self._totals = dict.fromkeys(STATUSES, 0)

    def expect(self, consumers: Iterable[str]) -> None:
        """Create every counter at 0, so that the first dead letter is visible as an increase."""
        for consumer in consumers:
            self._received.labels(consumer)
            for status in STATUSES:
                self._processed.labels(consumer, status)

    def received(self, consumer: str) -> None:
        self._received.labels(consumer).inc()

    def processed(self, consumer: str, status: str) -> None:
        self._totals[status] += 1
        self._processed.labels(consumer, status).inc()

    def retried(self, consumer: str, delay: str) -> None:
        self._retries.labels(consumer, delay).inc()

    def handler_ran(self, consumer: str, seconds: float) -> None:
        self._seconds.labels(consumer).observe(seconds)

    def dead_letters(self, queue: str, depth: int) -> None:
        self._dead_letters.labels(queue).set(depth)

    def active(self, consumers: int) -> None:
        self._active.set(consumers)

    def totals(self) -> dict[str, int]:
        """Counts since the start, by status."""
        return dict(self._totals)
