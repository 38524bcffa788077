"""
SchedulerReporter: what the scheduler tells of its deliveries, in logs and metrics.

An event about a message is logged with the context that its producer stored in the row, and never with its payload.
"""

from __future__ import annotations

from outrider.retry_scheduler.claim import Batch
from outrider.retry_scheduler.settlement import Refused, Settlement
from outrider.storage.store import Burial
from outrider.telemetry.logs import context_of, get_logger
from outrider.telemetry.metrics import Metrics, destination

log = get_logger(__name__)


class SchedulerReporter:
    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._delivered = self._failed = self._buried = self._deferred = 0

    def totals(self) -> dict[str, int]:
        """Since the start."""
        return {
            "delivered": self._delivered,
            "failed": self._failed,
            "buried": self._buried,
            "deferred": self._deferred,
        }

    def verdicts(self, batch: Batch, verdicts: Settlement, server_time: int) -> None:
        """Some of a batch's messages have met their fate."""
        confirmed = verdicts.confirmed
        self._delivered += len(confirmed)
        self._metrics.published(map(destination, confirmed))
        self._metrics.publish_seconds.observe_many(verdicts.publish_seconds)
        self._metrics.message_age.observe_many([(server_time - message.created_at) / 1e6 for message in confirmed])
        for refused in verdicts.refused:
            self._refused(refused)
        if verdicts.deferred:
            self._deferred += len(verdicts.deferred)
            self._metrics.deferred(len(verdicts.deferred))
        log.debug(
            "delivered",
            claim=batch.claim,
            confirmed=len(confirmed),
            refused=len(verdicts.refused),
            deferred=len(verdicts.deferred),
            released=len(verdicts.released),
        )

    def _refused(self, refused: Refused) -> None:
        message, failure, decision = refused
        if failure is not None:
            self._metrics.failed(failure)
        attempts = message.attempts + (decision.spent if isinstance(decision, Burial) else 1)
        with context_of(message):
            event = log.bind(**message.describe(), attempts=attempts, error=decision.error)
            if isinstance(decision, Burial):
                self._buried += 1
                self._metrics.dead_lettered(decision.reason, message.event_type)
                event.error("buried", reason=decision.reason, hint=failure.hint if failure else None)
            else:
                self._failed += 1
                hint = failure.hint if failure else None
                event.warning("failed", backoff_seconds=round(decision.backoff_seconds, 1), hint=hint)
