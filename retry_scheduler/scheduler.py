"""
The scheduler's loop: claim, deliver, tell the store; keep house in between; sleep until something is due.

At start a database or broker that cannot be reached is an error for the operator, and `run` and `drain` raise it. Once
`run` has been connected it never gives up. While the broker is away rows are left alone (see breaker.py); while the
database is away, what it must be told is kept (see ledger.py).

On shutdown no more rows are claimed, rows that were not sent are released at once, and those that were are waited for,
up to `shutdown_timeout_seconds`.
"""

from __future__ import annotations

import select
import time

from outrider.delivery.publisher import open_publisher
from outrider.delivery.retry_policy import RetryPolicy
from outrider.errors import DatabaseError
from outrider.failures import ClassifiedOutage
from outrider.retry_scheduler.broker_connection import BrokerConnection
from outrider.retry_scheduler.circuit_breaker import BreakerState, CircuitBreaker
from outrider.retry_scheduler.claim import Batch, Claimer
from outrider.retry_scheduler.database import Database
from outrider.retry_scheduler.deliver import Deliveries
from outrider.retry_scheduler.expire import Expire
from outrider.retry_scheduler.housekeeping import Housekeeping
from outrider.retry_scheduler.pending_settlements import PendingSettlements
from outrider.retry_scheduler.prefetch import Prefetch
from outrider.retry_scheduler.prune import Prune
from outrider.retry_scheduler.reporting import SchedulerReporter
from outrider.retry_scheduler.sample_gauges import SampleGauges
from outrider.retry_scheduler.show_presence import ShowPresence
from outrider.retry_scheduler.unpark import AFTER_PARKING_SECONDS, Unpark
from outrider.runtime.crash_points import crash_point
from outrider.runtime.shutdown import Shutdown
from outrider.settings.models import SchedulerSettings
from outrider.storage.store import Store
from outrider.telemetry.health import Health
from outrider.telemetry.logs import get_logger
from outrider.telemetry.metrics import Metrics
from outrider.version import __version__

PROBE_SIZE = 1
BATCHES_ON_THEIR_WAY = 4
"""A broker confirms persistent messages in bursts: with less on the way it waits for us as often as we for it."""
FIRST_POLL_SECONDS = 0.02
HEARTBEAT_SECONDS = 1.0
WAIT_SECONDS = 0.1
"""How long to wait for answers before looking at everything else."""
CLAIM_SECONDS = 2.0
"""How long a claim in progress is waited for at the end: longer, and its rows wait for the lease."""

log = get_logger(__name__)


class Scheduler:
    """One process of the scheduler: `run` or `drain` it once."""

    def __init__(self, settings: SchedulerSettings, shutdown: Shutdown, *, metrics: Metrics, health: Health) -> None:
        self._settings = settings
        self._shutdown = shutdown
        self._metrics = metrics
        self._health = health
        self._publisher = open_publisher(
            settings.broker_url.get_secret_value(),
            send_timeout_seconds=settings.send_timeout_seconds,
            connect_timeout_seconds=settings.connect_timeout_seconds,
            tls=settings.broker_tls,
        )
        cooldown_seconds = settings.broker_outage_cooldown_seconds
        self._gate = BrokerConnection(self._publisher, CircuitBreaker(cooldown_seconds), metrics=metrics, health=health)
        self._database = Database(settings)
        self._claimer = Claimer(settings.name, batch_size=settings.batch_size, lease_seconds=settings.lease_seconds)
        self._prefetch = Prefetch(Database(settings), self._claimer, metrics)
        self._deliveries = Deliveries(
            self._publisher, RetryPolicy.from_settings(settings), send_timeout_seconds=settings.send_timeout_seconds
        )
        self._ledger = PendingSettlements(metrics, archive=settings.archive, cooldown_seconds=cooldown_seconds)
        self._report = SchedulerReporter(metrics)
        self._presence = ShowPresence(settings.name)
        self._sampling = SampleGauges(metrics)
        expire = Expire(lambda event_type, count: metrics.dead_lettered("expired", event_type, count))
        self._rescue = Unpark()
        self._housekeeping = Housekeeping([self._presence, self._rescue, expire, Prune(settings), self._sampling])
        self._poll_seconds = FIRST_POLL_SECONDS
        self._after_release = crash_point("scheduler.after_release")

    # -- the two ways to run it ---------------------------------------------------------------------------------------

    def run(self) -> None:
        """Until a request to stop. Raises OutboxError for what cannot work."""
        try:
            self._connect()
            self._gate.show()
            log.info("scheduler_active", version=__version__, schema=self._settings.schema_name)
            while not self._shutdown.requested:
                try:
                    pause = self._turn(self._database.open())
                except DatabaseError as error:
                    self._health.not_ready(str(error))
                    if self._database.reopen(error, self._pause):
                        self._gate.show()
                else:
                    self._pause(pause)
        finally:
            self._stop()
        log.info("scheduler_stopped", **self._report.totals())

    def drain(self) -> None:
        """Deliver what is due, and return. Raises OutboxError when the database or the broker does not let it."""
        try:
            store = self._connect()
            self._housekeeping.run_all(store)
            while not self._shutdown.requested:
                was_idle = not self._deliveries.unreported
                if was_idle:
                    self._publisher.connect()
                found = self._has_room() and self._claim(store)
                if was_idle and not found:
                    break
                self._receive(0.0 if found else WAIT_SECONDS)
                self._ledger.tell(store)
                if (outage := self._deliveries.news().outage) is not None:
                    raise ClassifiedOutage(outage)
        finally:
            self._stop()
        log.info("drained", **self._report.totals())

    def status(self) -> dict[str, object]:
        """What /status shows. May be called from another thread."""
        sample = self._sampling.latest
        return {
            "service": "retry-scheduler",
            "name": self._settings.name,
            "version": __version__,
            "role": self._health.role,
            "breaker": str(self._gate.state),
            **self._report.totals(),
            "outbox": sample._asdict() if sample is not None else None,
        }

    def _connect(self) -> Store:
        store = self._database.open()
        self._publisher.connect()
        return store

    # -- one turn -----------------------------------------------------------------------------------------------------

    def _turn(self, store: Store) -> float:
        """Do what there is to do; returns how long to sleep."""
        self._health.wire_heard()
        self._ledger.tell(store)
        self._housekeeping.run_due(store)
        prefetch, due_in = self._prefetch, None
        if not prefetch.in_progress and self._has_room() and self._gate.may_send():
            due_in = store.next_due()
            if due_in is not None and due_in <= 0:
                prefetch.begin(at_most=self._most_to_claim())
        if prefetch.in_progress or self._deliveries.unreported:
            self._wait()
        found = (batch := prefetch.take()) is not None and self._accept(batch)
        if not (found or prefetch.in_progress or self._deliveries.unreported):
            return self._idle_seconds(due_in)
        self._receive(0.0)
        self._gate.learn(self._deliveries.news())
        self._ledger.tell(store)
        self._poll_seconds = FIRST_POLL_SECONDS
        return 0.0

    def _wait(self) -> None:
        """For answers, for a claim, or for a request to stop."""
        publisher = self._publisher
        broker = publisher.fileno()
        readable = [self._shutdown.fileno(), self._prefetch.fileno()] + ([] if broker is None else [broker])
        writable = [broker] if broker is not None and publisher.wants_write else []
        select.select(readable, writable, [], WAIT_SECONDS)

    def _has_room(self) -> bool:
        """A batch is claimed while others are on their way; not while a probe is, nor messages of a lost connection."""
        if self._gate.state is BreakerState.CLOSED and self._publisher.connected:
            return self._deliveries.unresolved < BATCHES_ON_THEIR_WAY * self._settings.batch_size
        return not self._deliveries.unresolved

    def _most_to_claim(self) -> int | None:
        return None if self._gate.state is BreakerState.CLOSED else PROBE_SIZE

    def _claim(self, store: Store) -> bool:
        """Start the next batch; returns whether anything was due."""
        began = time.monotonic()
        batch = self._claimer.claim(store, at_most=self._most_to_claim())
        self._metrics.claim_seconds.observe(time.monotonic() - began)
        return self._accept(batch)

    def _accept(self, batch: Batch) -> bool:
        """Send a batch, unless the broker went away while it was claimed; whether there was anything in it."""
        if batch.messages:
            if self._publisher.connected:
                self._deliveries.accept(batch)
            else:
                self._deliveries.decline(batch)
        if batch.parked:
            self._housekeeping.hasten(self._rescue, AFTER_PARKING_SECONDS)
        return bool(batch.messages or batch.parked)

    def _receive(self, wait_seconds: float) -> None:
        """Take answers, and note what they mean."""
        self._health.beat()
        while self._deliveries.receive(wait_seconds):
            wait_seconds = 0.0  # what was sent just now may have an answer already
        self._note_verdicts()

    def _note_verdicts(self, *, all_known: bool = False) -> None:
        for batch, verdicts in self._deliveries.report(all_known=all_known):
            self._report.verdicts(batch, verdicts, batch.server_time(time.monotonic()))
            self._ledger.add(batch, verdicts)

    # -- sleeping and stopping ----------------------------------------------------------------------------------------

    def _idle_seconds(self, due_in: float | None) -> float:
        """Until the next row falls due, but look for unannounced ones: at first soon, then every poll_seconds."""
        longest = self._settings.poll_seconds
        pause = min(self._poll_seconds, longest)
        self._poll_seconds = min(self._poll_seconds * 2, longest)
        wake = min(pause, self._housekeeping.seconds_until_due())
        # What is due but could not be claimed is in the hands of others.
        return wake if due_in is None or due_in <= 0 else min(wake, due_in)

    def _pause(self, seconds: float) -> bool:
        """Sleep, and see to the broker meanwhile. Returns whether to stop."""
        wake_at = time.monotonic() + seconds
        while not self._shutdown.requested:
            self._gate.keep_alive()
            self._receive(0.0)
            left = wake_at - time.monotonic()
            if left <= 0:
                break
            readable = [self._shutdown.fileno(), self._publisher.fileno()]
            select.select([each for each in readable if each is not None], [], [], min(left, HEARTBEAT_SECONDS))
        return self._shutdown.requested

    def _stop(self) -> None:
        """Release what was not sent, at once; wait for the answers to the rest, as long as the settings say."""
        self._health.stopping()
        stop_by = time.monotonic() + self._settings.shutdown_timeout_seconds
        self._deliveries.release_unsent()
        if (batch := self._prefetch.close(CLAIM_SECONDS)) is not None and batch.messages:
            self._deliveries.decline(batch)
        self._note_verdicts(all_known=True)
        self._tell_at_the_end()
        self._after_release()
        while self._deliveries.unresolved and time.monotonic() < stop_by:
            self._receive(WAIT_SECONDS)
        self._deliveries.abandon()
        self._note_verdicts(all_known=True)
        self._tell_at_the_end(leave=True)
        self._database.close()

    def _tell_at_the_end(self, *, leave: bool = False) -> None:
        if not (self._ledger or self._database.is_open):
            return
        try:
            store = self._database.open()
            self._ledger.tell(store)
            if leave:
                self._presence.leave(store)
        except DatabaseError as error:
            self._database.close()
            log.warning("not_told", reason=str(error), batches=len(self._ledger), hint="their rows wait for the lease")
