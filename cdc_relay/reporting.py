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
from outrider.runtime.delivery_listener import report_delivered
from outrider.storage.decision import Burial
from outrider.storage.message import Message
from outrider.telemetry.logs import context_of, get_logger
from outrider.telemetry.metrics import Metrics, destination

log = get_logger(__name__)


MANY_LATE_ROWS = 100
"""So many late rows in a row are no accident of a few slow transactions."""


class RelayReporter:
    """Counts since the start of the process are in `delivered`, `handed_over`, `failed`, `late` and `clock_jumps`."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._warned_of_late_rows = False
        self.delivered = self.handed_over = self.failed = self.late = self.clock_jumps = 0

    def report_rows(self, rows: Sequence[Message]) -> None:
        """Rows were read from the WAL."""
        self._metrics.enqueued(row.event_type for row in rows)

    def report_late(self, late: int, *, in_a_row: int) -> None:
        """Rows were skipped because their hand-over is near or past; `in_a_row`: so many since one was in time."""
        self.late += late
        self._metrics.late(late)
        if in_a_row < MANY_LATE_ROWS:
            self._warned_of_late_rows = False
        elif not self._warned_of_late_rows:
            self._warned_of_late_rows = True
            log.warning(
                "rows_too_late",
                in_a_row=in_a_row,
                reason="the relay reads rows so late after their insert that it must leave them to the scheduler",
                hint="a transaction lasts longer than the hand-over time (outrider setup --handover-after), the relay "
                "cannot keep up, or the database's clock was set (outrider doctor)",
            )

    def report_clock_jump(self, seconds: float) -> None:
        self.clock_jumps += 1
        self._metrics.clock_jumped()
        log.warning(
            "clock_jumped",
            seconds=round(seconds, 3),
            reason=f"the database's clock was set {'forward' if seconds > 0 else 'back'} by {abs(seconds):.1f} s",
            hint="let NTP slew the clock of the database server: rows that are handed over or claimed meanwhile are "
            "delivered late or twice",
        )

    def report_failures(self, outcomes: Sequence[Outcome]) -> None:
        """Count all failures, and log those that concern one message. BackgroundPublisher logs an outage, once."""
        for message, failure in outcomes:
            if failure is None:
                continue
            self._metrics.failed(failure)
            if failure.kind is not FailureKind.OUTAGE:
                self._metrics.refused(message.event_type)
                with context_of(message):
                    log.warning(
                        "refused", error=failure.error, reason=failure.text, hint=failure.hint, **message.describe()
                    )

    def report_confirmations(self, confirmations: Sequence[Confirmation], now: int) -> None:
        if confirmations:
            self._metrics.published(destination(each.message) for each in confirmations)
            self._metrics.delivered(each.message.event_type for each in confirmations)
            self._metrics.message_age.observe_many([(now - each.committed_at) / 1e6 for each in confirmations])
            self._metrics.publish_seconds.observe_many([(now - each.published_at) / 1e6 for each in confirmations])
            self.delivered += len(confirmations)
            report_delivered(each.message for each in confirmations)

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
