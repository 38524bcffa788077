"""
The scheduler's loop: claim, deliver, tell the store; keep house in between; sleep until something is due.

At start a database or broker that cannot be reached is an error for the operator, and `run` and `drain` raise it. Once
`run` has been connected it never gives up. While the broker is away rows are left alone (see breaker.py). While the
database is away, verdicts that it could not be told are kept until the lease of their rows has ended.

On shutdown no more rows are claimed, rows that were not sent are released at once, and those that were are waited for,
up to `shutdown_timeout_seconds`.
"""

from __future__ import annotations

import contextlib
import select
import time
from collections import deque

from outbox import __version__
from outbox.delivery.publisher import Publisher, open_publisher
from outbox.errors import BrokerOutage, DatabaseError
from outbox.failures import ClassifiedOutage, Failure, classify, failure
from outbox.retry_policy import RetryPolicy
from outbox.settings import SchedulerSettings
from outbox.shutdown import Shutdown
from outbox.store import Store
from outbox.telemetry.health import Health
from outbox.telemetry.logs import get_logger
from outbox.telemetry.metrics import Metrics
from retry_scheduler.breaker import Breaker, BreakerState
from retry_scheduler.claim import Batch, Claimer
from retry_scheduler.database import Database
from retry_scheduler.deliver import Delivery
from retry_scheduler.expire import Expire
from retry_scheduler.housekeeping import Housekeeping
from retry_scheduler.presence import Presence
from retry_scheduler.prune import Prune
from retry_scheduler.report import Report
from retry_scheduler.rescue import Rescue
from retry_scheduler.sample import Sampling
from retry_scheduler.verdicts import Verdicts

PROBE_SIZE = 1
FIRST_POLL_SECONDS = 0.02
HEARTBEAT_SECONDS = 1.0

log = get_logger(__name__)


class Scheduler:
    """One process of the scheduler. `run` or `drain` it once."""

    def __init__(self, settings: SchedulerSettings, shutdown: Shutdown, *, metrics: Metrics, health: Health) -> None:
        self._settings = settings
        self._shutdown = shutdown
        self._metrics = metrics
        self._health = health
        self._policy = RetryPolicy.from_settings(settings)
        self._publisher = _open_publisher(settings)
        self._database = Database(settings)
        self._breaker = Breaker(settings.broker_outage_cooldown_seconds)
        self._claimer = Claimer(settings.name, batch_size=settings.batch_size, lease_seconds=settings.lease_seconds)
        self._report = Report(metrics)
        self._presence = Presence(settings.name)
        self._sampling = Sampling(metrics)
        expire = Expire(lambda event_type, count: metrics.dead_lettered("expired", event_type, count))
        self._housekeeping = Housekeeping([self._presence, Rescue(), expire, Prune(settings), self._sampling])
        self._untold: deque[tuple[Batch, Verdicts]] = deque()
        self._poll_seconds = FIRST_POLL_SECONDS

    # -- the two ways to run it ---------------------------------------------------------------------------------------

    def run(self) -> None:
        """Until a request to stop. Raises OutboxError for what cannot work."""
        try:
            self._database.open()
            self._publisher.connect()
            self._show_state()
            log.info("scheduler_active", version=__version__, schema=self._settings.schema_name)
            while not self._shutdown.requested:
                self._health.beat()
                try:
                    pause = self._turn(self._database.open())
                except DatabaseError as error:
                    self._health.not_ready(str(error))
                    if self._database.reopen(error, self._pause):
                        self._show_state()
                else:
                    self._pause(pause)
        finally:
            self._stop()
        log.info("scheduler_stopped", delivered=self._report.delivered)

    def drain(self) -> None:
        """Deliver what is due, and return. Raises OutboxError when the database or the broker does not let it."""
        try:
            store = self._database.open()
            self._publisher.connect()
            self._housekeeping.run_all(store)
            while not self._shutdown.requested:
                batch = self._claim(store)
                outage = self._deliver(store, batch) if batch.messages else None
                self._tell(store)
                if outage is not None:
                    raise ClassifiedOutage(outage)
                if not batch.messages and not batch.parked:
                    break
                if not self._publisher.connected:
                    self._publisher.connect()
        finally:
            self._stop()
        log.info("drained", delivered=self._report.delivered, failed=self._report.failed, buried=self._report.buried)

    def status(self) -> dict[str, object]:
        """What /status shows. May be called from another thread."""
        sample = self._sampling.latest
        return {
            "service": "retry-scheduler",
            "name": self._settings.name,
            "version": __version__,
            "role": self._health.role,
            "breaker": str(self._breaker.state(time.monotonic())),
            "delivered": self._report.delivered,
            "failed": self._report.failed,
            "buried": self._report.buried,
            "deferred": self._report.deferred,
            "outbox": sample._asdict() if sample is not None else None,
        }

    # -- one turn -----------------------------------------------------------------------------------------------------

    def _turn(self, store: Store) -> float:
        """Do what there is to do; returns how long to sleep."""
        self._health.wire_heard()
        self._tell(store)
        self._housekeeping.run_due(store)
        if not self._broker_usable():
            wait = self._breaker.wait_seconds(time.monotonic())
            return min(wait, self._settings.poll_seconds)
        due_in = store.next_due()
        if due_in is not None and due_in <= 0:
            probing = self._breaker.state(time.monotonic()) is BreakerState.HALF_OPEN
            batch = self._claim(store, at_most=PROBE_SIZE if probing else None)
            if batch.messages:
                self._deliver(store, batch)
                self._tell(store)
            if batch.messages or batch.parked:
                self._poll_seconds = FIRST_POLL_SECONDS
                return 0.0
            due_in = None  # others are at it
        return self._idle_seconds(due_in)

    def _claim(self, store: Store, *, at_most: int | None = None) -> Batch:
        began = time.monotonic()
        batch = self._claimer.claim(store, at_most=at_most)
        self._metrics.claim_seconds.observe(time.monotonic() - began)
        return batch

    def _deliver(self, store: Store, batch: Batch) -> Failure | None:
        """Send a batch; returns the outage that ended it."""
        delivery = Delivery(
            batch,
            self._publisher,
            self._policy,
            send_timeout_seconds=self._settings.send_timeout_seconds,
            shutdown_timeout_seconds=self._settings.shutdown_timeout_seconds,
            stop_requested=self._stop_requested,
        )
        for verdicts in delivery.run():
            self._report.verdicts(batch, verdicts, batch.server_time(time.monotonic()))
            self._untold.append((batch, verdicts))
            # What is in flight is waited for, whatever happens to the database: it is told later.
            with contextlib.suppress(DatabaseError):
                self._tell(store)
        if delivery.answered:
            self._breaker.answered()
        if delivery.outage is not None:
            self._suffer_outage(delivery.outage)
        elif delivery.answered:
            self._show_state()
        return delivery.outage

    def _tell(self, store: Store) -> None:
        """Tell the store what it does not know yet."""
        while self._untold:
            batch, verdicts = self._untold[0]
            began = time.monotonic()
            try:
                lost = verdicts.apply(
                    store,
                    archive=self._settings.archive,
                    cooldown_seconds=self._settings.broker_outage_cooldown_seconds,
                )
            except DatabaseError:
                if time.monotonic() < batch.lease_ends_at:
                    raise
                log.warning("lease_ended_untold", claim=batch.claim)
            else:
                self._metrics.settle_seconds.observe(time.monotonic() - began)
                if lost:
                    log.warning("lease_ended", claim=batch.claim, rows=lost)
            self._untold.popleft()

    def _idle_seconds(self, due_in: float | None) -> float:
        """Until the next row falls due, but look for unannounced ones: at first soon, then every poll_seconds."""
        longest = self._settings.poll_seconds
        pause = min(self._poll_seconds, longest)
        self._poll_seconds = min(self._poll_seconds * 2, longest)
        wake = min(pause, self._housekeeping.seconds_until_due())
        return wake if due_in is None else min(wake, max(due_in, 0.0))

    # -- the broker ---------------------------------------------------------------------------------------------------

    def _broker_usable(self) -> bool:
        if self._breaker.wait_seconds(time.monotonic()) > 0:
            return False
        try:
            self._publisher.connect()
        except BrokerOutage as error:
            self._suffer_outage(classify(error))
            return False
        if (blocked := self._publisher.blocked) is not None:
            self._suffer_outage(failure("Blocked", f"the broker takes no messages: {blocked}"))
            return False
        return True

    def _suffer_outage(self, why: Failure) -> None:
        self._breaker.outage(time.monotonic())
        self._report.outage(why)
        self._show_state(why)

    def _show_state(self, why: Failure | None = None) -> None:
        state = self._breaker.state(time.monotonic())
        self._metrics.breaker_open.set(float(state is not BreakerState.CLOSED))
        if state is BreakerState.CLOSED:
            self._health.ready("active")
        else:
            self._health.not_ready(f"the breaker is {state}" + (f": {why.text}" if why else ""))

    # -- sleeping and stopping ----------------------------------------------------------------------------------------

    def _pause(self, seconds: float) -> bool:
        """Sleep, keeping the broker connection alive. Returns whether to stop."""
        wake_at = time.monotonic() + seconds
        while not self._shutdown.requested:
            self._keep_broker_alive()
            left = wake_at - time.monotonic()
            if left <= 0:
                break
            self._health.beat()
            readable = [self._shutdown.fileno(), self._publisher.fileno()]
            select.select([each for each in readable if each is not None], [], [], min(left, HEARTBEAT_SECONDS))
        return self._shutdown.requested

    def _keep_broker_alive(self) -> None:
        if not self._publisher.connected:
            return
        try:
            self._publisher.heartbeat()
            self._publisher.collect(0)
        except BrokerOutage as error:
            # Nothing was in flight: the next turn connects again, and only if that fails it is an outage.
            why = classify(error)
            log.info("broker_connection_lost", error=why.error, reason=why.text)

    def _stop_requested(self) -> bool:
        self._health.beat()
        return self._shutdown.requested

    def _stop(self) -> None:
        self._health.stopping()
        self._publisher.close()
        if self._untold or self._database.is_open:
            try:
                store = self._database.open()
                self._tell(store)
                self._presence.leave(store)
            except DatabaseError as error:
                log.warning("left_to_the_lease", reason=str(error), batches=len(self._untold))
        self._database.close()


def _open_publisher(settings: SchedulerSettings) -> Publisher:
    return open_publisher(
        settings.broker_url.get_secret_value(),
        send_timeout_seconds=settings.send_timeout_seconds,
        connect_timeout_seconds=settings.connect_timeout_seconds,
    )
