"""
Scheduler: the service's loop. Claim, deliver, settle; sleep until a row is due. Presence, gauges and clean-up run
beside it (runtime/bookkeeping.py); only parked rows are looked up in between.

At start an unreachable database or broker is an error for the operator: `run` and `drain` raise it. After that `run`
never gives up. While the broker is away no rows are claimed (see circuit_breaker.py); while the database is away,
settlements are kept (see pending_settlements.py).

On shutdown no more rows are claimed, rows that were not sent are released at once, and the outcomes of the others are
waited for, up to `shutdown_timeout_seconds`.
"""

from __future__ import annotations

import select
import time
from functools import partial

from outrider.delivery.retry_policy import RetryPolicy
from outrider.errors import DatabaseError
from outrider.failures import ClassifiedOutage
from outrider.retry_scheduler.broker_connection import BrokerConnection
from outrider.retry_scheduler.circuit_breaker import BreakerState, CircuitBreaker
from outrider.retry_scheduler.claim import Batch, Claimer
from outrider.retry_scheduler.database import Database
from outrider.retry_scheduler.deliver import Deliveries
from outrider.retry_scheduler.expire import Expire
from outrider.retry_scheduler.pending_settlements import PendingSettlements
from outrider.retry_scheduler.prefetch import Prefetch
from outrider.retry_scheduler.prune import Prune
from outrider.retry_scheduler.reporting import SchedulerReporter
from outrider.retry_scheduler.sample_gauges import SampleGauges
from outrider.retry_scheduler.unpark import AFTER_PARKING_SECONDS, Unpark
from outrider.runtime.bookkeeping import Bookkeeping
from outrider.runtime.crash_points import crash_point
from outrider.runtime.maintenance import Maintenance, MaintenanceTask
from outrider.runtime.service_connections import open_service_publisher, open_service_store
from outrider.runtime.shutdown import Shutdown
from outrider.settings.scheduler import SchedulerSettings
from outrider.storage.store import Store
from outrider.telemetry.health import Health
from outrider.telemetry.logs import get_logger
from outrider.telemetry.metrics import Metrics
from outrider.version import __version__

PROBE_SIZE = 1
BATCHES_IN_FLIGHT = 4
"""The broker confirms persistent messages in bursts: with fewer batches in flight it would often be idle."""
FIRST_POLL_SECONDS = 0.02
HEARTBEAT_SECONDS = 1.0
WAIT_SECONDS = 0.1
"""The longest wait for outcomes or a claim before the loop does its other work."""
CLAIM_SECONDS = 2.0
"""How long shutdown waits for a running claim. The rows of a slower one fall due when the lease ends."""

log = get_logger(__name__)


class Scheduler:
    """One process of the scheduler. Call `run` or `drain`, once."""

    def __init__(self, settings: SchedulerSettings, shutdown: Shutdown, *, metrics: Metrics, health: Health) -> None:
        self._settings = settings
        self._shutdown = shutdown
        self._metrics = metrics
        self._health = health
        self._publisher = open_service_publisher(settings)
        cooldown_seconds = settings.broker_outage_cooldown_seconds
        breaker = CircuitBreaker(cooldown_seconds)
        self._broker = BrokerConnection(self._publisher, breaker, metrics=metrics, health=health)
        self._database = Database(settings)
        self._claimer = Claimer(
            settings.name,
            batch_size=settings.batch_size,
            batch_bytes=settings.batch_bytes,
            lease_seconds=settings.lease_seconds,
        )
        self._prefetch = Prefetch(Database(settings), self._claimer, metrics)
        self._deliveries = Deliveries(
            self._publisher, RetryPolicy.from_settings(settings), send_timeout_seconds=settings.send_timeout_seconds
        )
        self._settlements = PendingSettlements(metrics, archive=settings.archive, cooldown_seconds=cooldown_seconds)
        self._reporter = SchedulerReporter(metrics)
        self._unpark = Unpark()
        self._gauges = SampleGauges(metrics)
        self._maintenance = Maintenance([self._unpark])
        self._beside: list[MaintenanceTask] = [Expire(metrics), Prune(settings), self._gauges]
        self._bookkeeping = Bookkeeping(
            partial(open_service_store, settings, "retry-scheduler"),
            "scheduler",
            settings.name,
            health,
            self._beside,
        )
        self._poll_seconds = FIRST_POLL_SECONDS
        self._after_release = crash_point("scheduler.after_release")

    # -- the two ways to run it ---------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run until shutdown is requested. Raises OutboxError when the first connections fail."""
        try:
            self._connect()
            self._broker.show_state()
            self._bookkeeping.start()
            log.info("scheduler_active", version=__version__, schema=self._settings.schema_name)
            while not self._shutdown.requested:
                try:
                    pause = self._run_once(self._database.open())
                except DatabaseError as error:
                    self._health.set_not_ready(str(error))
                    if self._database.reopen(error, self._pause):
                        self._broker.show_state()
                else:
                    self._pause(pause)
        finally:
            self._stop()
        log.info("scheduler_stopped", **self._reporter.totals())

    def drain(self) -> None:
        """Deliver what is due, and return. Raises OutboxError when the database or the broker fails."""
        try:
            store = self._connect()
            Maintenance([self._unpark, *self._beside]).run_all(store)
            while not self._shutdown.requested:
                was_idle = not self._deliveries.unsettled
                if was_idle:
                    self._publisher.connect()
                found = self._has_room() and self._claim(store)
                if was_idle and not found:
                    break
                self._receive(0.0 if found else WAIT_SECONDS)
                self._settlements.write(store)
                if (outage := self._deliveries.take_broker_report().outage) is not None:
                    raise ClassifiedOutage(outage)
        finally:
            self._stop()
        log.info("drained", **self._reporter.totals())

    def status(self) -> dict[str, object]:
        """The scheduler's part of /status. May be called from another thread."""
        sample = self._gauges.latest
        return {
            "service": "retry-scheduler",
            "name": self._settings.name,
            "version": __version__,
            "role": self._health.role,
            "breaker": str(self._broker.state),
            **self._reporter.totals(),
            "outbox": sample._asdict() if sample is not None else None,
        }

    def _connect(self) -> Store:
        store = self._database.open()
        self._publisher.connect()
        return store

    # -- one iteration of the loop ------------------------------------------------------------------------------------

    def _run_once(self, store: Store) -> float:
        """Do the work that there is; returns how long to sleep."""
        self._health.connection_answered()
        self._settlements.write(store)
        self._maintenance.run_due(store)
        prefetch, due_in = self._prefetch, None
        if not prefetch.in_progress and self._has_room() and self._broker.try_connect():
            due_in = store.next_due()
            if due_in is not None and due_in <= 0:
                prefetch.begin(at_most=self._claim_limit())
        if prefetch.in_progress or self._deliveries.unsettled:
            self._wait(WAIT_SECONDS, self._prefetch.fileno())
        found = (batch := prefetch.take()) is not None and self._start(batch)
        if not (found or prefetch.in_progress or self._deliveries.unsettled):
            return self._idle_seconds(due_in)
        self._receive(0.0)
        self._broker.record(self._deliveries.take_broker_report())
        self._settlements.write(store)
        self._poll_seconds = FIRST_POLL_SECONDS
        return 0.0

    def _has_room(self) -> bool:
        """Whether to claim another batch. Not while a probe or messages of a lost connection have no outcome."""
        if self._broker.state is BreakerState.CLOSED and self._publisher.connected:
            return (
                self._deliveries.unresolved < BATCHES_IN_FLIGHT * self._settings.batch_size
                and self._deliveries.held_bytes < self._settings.batch_bytes
            )
        return not self._deliveries.unresolved

    def _claim_limit(self) -> int | None:
        return None if self._broker.state is BreakerState.CLOSED else PROBE_SIZE

    def _claim(self, store: Store) -> bool:
        """Claim and start the next batch; returns whether any row was due."""
        began = time.monotonic()
        batch = self._claimer.claim(store, at_most=self._claim_limit())
        self._metrics.claim_seconds.observe(time.monotonic() - began)
        return self._start(batch)

    def _start(self, batch: Batch) -> bool:
        """Send a batch, or release it if the connection was lost meanwhile; returns whether any row was due."""
        if batch.messages:
            self._drop_overdue(batch)
            if self._publisher.connected:
                self._deliveries.start(batch)
            else:
                self._deliveries.release(batch)
        if batch.parked:
            self._maintenance.run_soon(self._unpark, AFTER_PARKING_SECONDS)
        return bool(batch.messages or batch.parked)

    def _drop_overdue(self, claimed: Batch | None = None) -> None:
        if self._deliveries.drop_overdue(claimed):
            self._claimer.start_small()

    def _receive(self, wait_seconds: float) -> None:
        """Receive outcomes until no more arrive, and collect the settlements."""
        self._health.record_loop()
        self._drop_overdue()
        while self._deliveries.receive(wait_seconds):
            wait_seconds = 0.0  # messages sent just now may have an outcome already
        self._collect_settlements()

    def _collect_settlements(self, *, incomplete: bool = False) -> None:
        for batch, settlement in self._deliveries.take_settlements(incomplete=incomplete):
            self._settlements.add(batch, settlement)  # first: a report that fails must not cost a settlement
            self._reporter.report(batch, settlement, batch.server_time(time.monotonic()))

    # -- sleeping and stopping ----------------------------------------------------------------------------------------

    def _idle_seconds(self, due_in: float | None) -> float:
        """Until the next row or task is due, or the next poll: soon at first, then less often, up to poll_seconds."""
        longest = self._settings.poll_seconds
        pause = min(self._poll_seconds, longest)
        self._poll_seconds = min(self._poll_seconds * 2, longest)
        wake = min(pause, self._maintenance.seconds_until_due())
        # A row that is due but could not be claimed is locked by another session: it is looked up at the next poll.
        return wake if due_in is None or due_in <= 0 else min(wake, due_in)

    def _pause(self, seconds: float) -> bool:
        """Sleep, with heartbeats for the broker. Returns whether shutdown is requested."""
        wake_at = time.monotonic() + seconds
        while not self._shutdown.requested:
            self._broker.send_heartbeat()
            self._receive(0.0)
            left = wake_at - time.monotonic()
            if left <= 0:
                break
            self._wait(min(left, HEARTBEAT_SECONDS))
        return self._shutdown.requested

    def _wait(self, seconds: float, *readable: int) -> None:
        """Wait for the publisher, for a request to stop, or for one of these file descriptors."""
        publisher = self._publisher
        if publisher.has_outcomes or publisher.has_blocking_work:
            return
        broker = [] if (fileno := publisher.fileno()) is None else [fileno]
        select.select(
            [*readable, self._shutdown.fileno(), *broker], broker if publisher.wants_write else [], [], seconds
        )

    def _stop(self) -> None:
        """Release unsent rows at once, then wait for the outcomes of the others, up to the shutdown timeout."""
        self._health.set_stopping()
        stop_by = time.monotonic() + self._settings.shutdown_timeout_seconds
        self._deliveries.release_unsent()
        if (batch := self._prefetch.close(CLAIM_SECONDS)) is not None and batch.messages:
            self._deliveries.release(batch)
        self._collect_settlements(incomplete=True)
        self._settle_at_shutdown()
        self._after_release()
        while self._deliveries.unresolved and time.monotonic() < stop_by:
            self._receive(WAIT_SECONDS)
        self._deliveries.disconnect()
        self._collect_settlements(incomplete=True)
        self._settle_at_shutdown()
        self._bookkeeping.close()
        self._database.close()

    def _settle_at_shutdown(self) -> None:
        if not self._settlements:
            return
        try:
            self._settlements.write(self._database.open())
        except DatabaseError as error:
            self._database.close()
            hint = "the rows are due again when the lease ends"
            log.warning("settlement_failed", reason=str(error), batches=len(self._settlements), hint=hint)
