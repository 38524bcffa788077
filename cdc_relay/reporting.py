"""
RelayReporter: the relay's metrics, and its log events about messages.

A log event about a message has the context that its producer stored in the row, and never its payload.
"""

from __future__ import annotations

from collections.abc import Sequence

from outrider.cdc_relay.pipeline import Confirmation, Pipeline
from outrider.cdc_relay.settlements import Failed, HandedOver, Settlement
from outrider.delivery.publisher import Outcome
from outrider.failures import FailureKind
from outrider.operations.setup.facts import SlotState
from outrider.storage.decision import Burial
from outrider.storage.message import Message
from outrider.telemetry.logs import context_of, get_logger
from outrider.telemetry.metrics import Metrics, destination

log = get_logger(__name__)


class RelayReporter:
    """Counts since the start of the process are in `delivered`, `handed_over` and `failed`."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self.delivered = self.handed_over = self.failed = 0

    def report_rows(self, rows: Sequence[Message]) -> None:
        """Rows were read from the WAL."""
        self._metrics.enqueued(row.event_type for row in rows)

    def report_failures(self, outcomes: Sequence[Outcome]) -> None:
        """Count all failures, and log those that concern one message. BackgroundPublisher logs an outage, once."""
        for message, failure in outcomes:
            if failure is None:
                continue
            self._metrics.failed(failure)
            if failure.kind is not FailureKind.OUTAGE:
                with context_of(message):
                    log.warning(
                        "refused", error=failure.error, reason=failure.text, hint=failure.hint, **message.describe()
                    )

    def report_confirmations(self, confirmations: Sequence[Confirmation], now: int) -> None:
        if confirmations:
            self._metrics.published(destination(each.message) for each in confirmations)
            self._metrics.message_age.observe_many([(now - each.committed_at) / 1e6 for each in confirmations])
            self._metrics.publish_seconds.observe_many([(now - each.published_at) / 1e6 for each in confirmations])
            self.delivered += len(confirmations)

    def report_settlements(self, settlements: Sequence[Settlement], seconds: float) -> None:
        self._metrics.settle_seconds.observe(seconds)
        handed_over = 0
        for settlement in settlements:
            if isinstance(settlement, HandedOver):
                handed_over += 1
            elif isinstance(settlement, Failed):
                self.failed += 1
                if isinstance(settlement.decision, Burial):
                    self._report_burial(settlement.decision, settlement.event_type)
        if handed_over:
            self.handed_over += handed_over
            self._metrics.deferred(handed_over)

    def _report_burial(self, burial: Burial, event_type: str) -> None:
        self._metrics.dead_lettered(burial.reason, event_type)
        log.error("buried", id=burial.id, event_type=event_type, reason=burial.reason, error=burial.error)

    def set_gauges(self, pipeline: Pipeline, *, lag_bytes: int) -> None:
        self._metrics.relay_in_flight.set(len(pipeline.window))
        self._metrics.blocked_keys.set(len(pipeline.blocked_keys))
        self._metrics.replication_lag_bytes.set(max(0, lag_bytes))

    def set_slot_gauges(self, state: SlotState | None) -> None:
        self._metrics.slot_status.set("missing" if state is None else state.wal_status)
        self._metrics.slot_retained_bytes.set(None if state is None else state.retained_bytes)
        self._metrics.slot_safe_wal_bytes.set(None if state is None else state.safe_wal_bytes)
