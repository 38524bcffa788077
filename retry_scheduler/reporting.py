"""
SchedulerReporter: the scheduler's log events and metrics about deliveries.

An event about a message has the context that its producer stored in the row, and never the payload.
"""

from __future__ import annotations

from outrider.retry_scheduler.claim import Batch
from outrider.retry_scheduler.settlement import BatchSettlement, FailedMessage
from outrider.runtime.delivery_listener import report_delivered
from outrider.storage.decision import Burial
from outrider.telemetry.logs import context_of, get_logger
from outrider.telemetry.metrics import Metrics, destination

log = get_logger(__name__)


class SchedulerReporter:
    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._delivered = self._failed = self._buried = self._deferred = 0

    def totals(self) -> dict[str, int]:
        """Counts since the start."""
        return {
            "delivered": self._delivered,
            "failed": self._failed,
            "buried": self._buried,
            "deferred": self._deferred,
        }

    def report(self, batch: Batch, settlement: BatchSettlement, server_time: int) -> None:
        """Report a settlement that is about to be written."""
        confirmed = settlement.confirmed
        self._delivered += len(confirmed)
        self._metrics.published(map(destination, confirmed))
        self._metrics.delivered(message.event_type for message in confirmed)
        report_delivered(confirmed)
        self._metrics.publish_seconds.observe_many(settlement.publish_seconds)
        self._metrics.message_age.observe_many([(server_time - message.created_at) / 1e6 for message in confirmed])
        for failed in settlement.failed:
            self._report_failed(failed)
        if settlement.deferred:
            self._deferred += len(settlement.deferred)
            self._metrics.deferred(len(settlement.deferred))
        log.debug(
            "delivered",
            claim=batch.claim,
            confirmed=len(confirmed),
            failed=len(settlement.failed),
            deferred=len(settlement.deferred),
            released=len(settlement.released),
        )

    def _report_failed(self, failed: FailedMessage) -> None:
        message, failure, decision = failed
        if failure is not None:
            self._metrics.failed(failure)
            self._metrics.refused(message.event_type)
        attempts = message.attempts + (decision.spent if isinstance(decision, Burial) else 1)
        hint = failure.hint if failure is not None else None
        with context_of(message):
            event = log.bind(**message.describe(), attempts=attempts, error=decision.error, hint=hint)
            if isinstance(decision, Burial):
                self._buried += 1
                self._metrics.dead_lettered(decision.reason, message.event_type)
                event.error("buried", reason=decision.reason)
            else:
                self._failed += 1
                event.warning("failed", backoff_seconds=round(decision.backoff_seconds, 1))
