"""
BrokerConnection: the publisher's connection, guarded by the circuit breaker.

It decides whether messages may be sent now, connects when they may, and sends heartbeats. The state of the breaker is
shown in the log, in the metric and in the readiness of the service. Publishing is done by deliver.py.
"""

from __future__ import annotations

import time

from outrider.delivery.publisher import Publisher
from outrider.errors import BrokerOutage
from outrider.failures import Failure, classify, failure
from outrider.retry_scheduler.circuit_breaker import BreakerState, CircuitBreaker
from outrider.retry_scheduler.deliver import BrokerReport
from outrider.telemetry.health import Health
from outrider.telemetry.logs import get_logger
from outrider.telemetry.metrics import Metrics

log = get_logger(__name__)


class BrokerConnection:
    def __init__(self, publisher: Publisher, breaker: CircuitBreaker, *, metrics: Metrics, health: Health) -> None:
        self._publisher = publisher
        self._breaker = breaker
        self._metrics = metrics
        self._health = health

    @property
    def state(self) -> BreakerState:
        return self._breaker.state(time.monotonic())

    def try_connect(self) -> bool:
        """
        Connect, unless the breaker forbids it; returns whether messages may be sent.

        Not to be called while messages of a lost connection have no outcome.
        """
        if self._breaker.wait_seconds(time.monotonic()) > 0:
            return False
        try:
            self._publisher.connect()
        except BrokerOutage as error:
            self._record_outage(classify(error))
            return False
        if (blocked := self._publisher.blocked) is not None:
            self._record_outage(failure("Blocked", f"the broker takes no messages: {blocked}"))
            return False
        return True

    def record(self, report: BrokerReport) -> None:
        """Update the breaker with what the deliveries observed."""
        if report.answered:
            was_closed = self.state is BreakerState.CLOSED
            self._breaker.record_answer()
            if not was_closed:
                log.info("breaker_closed")
                self.show_state()
        if report.outage is not None:
            self._record_outage(report.outage)

    def send_heartbeat(self) -> None:
        """To be called about once a second."""
        if not self._publisher.connected:
            return
        try:
            self._publisher.heartbeat()
        except BrokerOutage as error:
            # Not an outage for the breaker: no message may have been in flight, and connecting again may succeed.
            lost = classify(error)
            log.info("broker_connection_lost", error=lost.error, reason=lost.text)

    def show_state(self, outage: Failure | None = None) -> None:
        """Set the breaker's metric and the readiness of the service."""
        state = self.state
        self._metrics.breaker_open.set(float(state is not BreakerState.CLOSED))
        self._health.set_ready("active")
        if state is BreakerState.CLOSED:
            self._health.set_degraded(None)
        else:
            self._health.set_degraded(f"the breaker is {state}" + (f": {outage.text}" if outage else ""))

    def _record_outage(self, outage: Failure) -> None:
        self._breaker.record_outage(time.monotonic())
        self._metrics.failed(outage)
        log.warning("broker_outage", error=outage.error, reason=outage.text, hint=outage.hint, breaker=str(self.state))
        self.show_state(outage)
