"""
The gate: whether the broker may be used now, as the breaker says, and keeping its connection alive.

It shows the breaker to the outside: in the logs, the metric and the readiness of the service.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from outrider.delivery.publisher import Publisher
from outrider.errors import BrokerOutage
from outrider.failures import Failure, classify, failure
from outrider.retry_scheduler.circuit_breaker import BreakerState, CircuitBreaker
from outrider.retry_scheduler.deliver import News
from outrider.telemetry.health import Health
from outrider.telemetry.logs import get_logger
from outrider.telemetry.metrics import Metrics

log = get_logger(__name__)


class BrokerConnection:
    def __init__(
        self,
        publisher: Publisher,
        breaker: CircuitBreaker,
        *,
        metrics: Metrics,
        health: Health,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._publisher = publisher
        self._breaker = breaker
        self._metrics = metrics
        self._health = health
        self._clock = clock

    @property
    def state(self) -> BreakerState:
        return self._breaker.state(self._clock())

    def may_send(self) -> bool:
        """Connects if need be. Not to be asked while messages of a lost connection are unresolved."""
        if self._breaker.wait_seconds(self._clock()) > 0:
            return False
        try:
            self._publisher.connect()
        except BrokerOutage as error:
            self._outage(classify(error))
            return False
        if (blocked := self._publisher.blocked) is not None:
            self._outage(failure("Blocked", f"the broker takes no messages: {blocked}"))
            return False
        return True

    def learn(self, news: News) -> None:
        """What the deliveries found out."""
        if news.answered:
            was_closed = self.state is BreakerState.CLOSED
            self._breaker.answered()
            if not was_closed:
                log.info("breaker_closed")
                self.show()
        if news.outage is not None:
            self._outage(news.outage)

    def keep_alive(self) -> None:
        """To be called about once a second, whatever else happens."""
        if not self._publisher.connected:
            return
        try:
            self._publisher.heartbeat()
        except BrokerOutage as error:
            # Only if messages were on their way, or connecting again fails, it is an outage.
            why = classify(error)
            log.info("broker_connection_lost", error=why.error, reason=why.text)

    def show(self, why: Failure | None = None) -> None:
        """Let the metric and the probes know."""
        state = self.state
        self._metrics.breaker_open.set(float(state is not BreakerState.CLOSED))
        if state is BreakerState.CLOSED:
            self._health.ready("active")
        else:
            self._health.not_ready(f"the breaker is {state}" + (f": {why.text}" if why else ""))

    def _outage(self, why: Failure) -> None:
        self._breaker.outage(self._clock())
        self._metrics.failed(why)
        log.warning("broker_outage", error=why.error, reason=why.text, hint=why.hint, breaker=str(self.state))
        self.show(why)
