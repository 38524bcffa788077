"""
Metrics of a worker, for Prometheus: every name, label, bucket and help text of theirs is in this module.

Every method may be called from any thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from outrider.storage.decision import DEAD_LETTER_REASONS
from outrider.telemetry.metrics import STEP_BUCKETS

STATUSES: Final = ("done", "duplicate", "retried", "requeued", *DEAD_LETTER_REASONS)
PROCESSED_HELP: Final = (
    "Messages that a worker is done with, by status: done, duplicate, retried, requeued, or why it is a dead letter."
)


class ConsumerMetrics:
    """Registered with the process's registry. Label values are consumer names and delays: few, and known at start."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._received = Counter(
            "outbox_consumer_received_total", "Messages that a worker received.", ["consumer"], registry=registry
        )
        self._processed = Counter(
            "outbox_consumer_processed_total", PROCESSED_HELP, ["consumer", "status"], registry=registry
        )
        self._retries = Counter(
            "outbox_consumer_retries_total", "Messages sent to a delay.", ["consumer", "delay"], registry=registry
        )
        self._seconds = Histogram(
            "outbox_consumer_handler_seconds",
            "Seconds that a handler ran.",
            ["consumer"],
            buckets=(*STEP_BUCKETS, 60.0, 300.0),
            registry=registry,
        )
        self._dead_letters = Gauge(
            "outbox_consumer_dead_letters", "Messages in a queue's dead-letter queue.", ["queue"], registry=registry
        )
        self._active = Gauge(
            "outbox_consumer_active", "Consumers of this worker that receive messages now.", registry=registry
        )
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
