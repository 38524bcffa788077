"""
The relay as a service: runs replication sessions until a request to stop.

At start, a wrong address, a missing table or a missing privilege is an error: `run` raises it. After the first
connection, every database error leads to a new session, after a backoff with jitter. While another relay holds the
slot, this one is a standby, and takes over within `standby_poll_seconds` after the slot is free.
"""

from __future__ import annotations

import contextlib
import random
import time
from functools import partial
from typing import Literal

from outrider.cdc_relay.replication_session import ReplicationSession
from outrider.cdc_relay.reporting import RelayReporter
from outrider.cdc_relay.sample_slot import SampleSlot
from outrider.cdc_relay.slot import OBJECT_IN_USE, UNDEFINED_OBJECT, drop_slot_older_than_publication, ensure_slot
from outrider.cdc_relay.stream import ReplicationStream
from outrider.errors import DatabaseError, ReplicationError, SetupError
from outrider.operations.doctor.timeline import FAILOVER_FOUND, FAILOVER_REMEDY
from outrider.operations.setup.facts import applied_migrations, handover_seconds, publication_problem, server_problem
from outrider.runtime.bookkeeping import Bookkeeping
from outrider.runtime.broker_probe import BrokerProbe
from outrider.runtime.crash_points import crash_point
from outrider.runtime.reconnect_delay import STEADY_SECONDS, reconnect_delay
from outrider.runtime.service_connections import open_service_publisher, open_service_store
from outrider.runtime.service_telemetry import Telemetry
from outrider.runtime.shutdown import Shutdown
from outrider.settings.relay import RelaySettings
from outrider.storage.sql_files import migrations
from outrider.storage.store import Store
from outrider.telemetry.logs import get_logger
from outrider.version import __version__

log = get_logger(__name__)


class Relay:
    """One process of the relay."""

    def __init__(self, settings: RelaySettings, shutdown: Shutdown, telemetry: Telemetry) -> None:
        self._settings = settings
        self._shutdown = shutdown
        self._metrics = telemetry.metrics
        self._health = telemetry.health
        self._reporter = RelayReporter(telemetry.metrics)
        self._bookkeeping = Bookkeeping(
            partial(open_service_store, settings, "cdc-relay"),
            "relay",
            settings.name,
            telemetry.health,
            [SampleSlot(settings.slot, self._reporter)],
        )
        self._ever_connected = False
        self._reached_broker = False
        self._slot_is_older_than_publication = False
        self._timeline: int | None = None
        self._timeline_changes = 0
        self._after_acquire = crash_point("relay.after_acquire")
        # Raises SettingsError for an unusable broker_url, before anything is opened.
        open_service_publisher(settings).close()

    def run(self) -> None:
        """Run until a request to stop. Raises OutboxError for a problem that only an operator can solve."""
        with self._bookkeeping:
            self._run_sessions()

    def _run_sessions(self) -> None:
        failures = 0
        while not self._shutdown.requested:
            started = time.monotonic()
            try:
                self._run_session()
            except DatabaseError as error:
                if not self._ever_connected:
                    raise
                failures = 0 if time.monotonic() - started > STEADY_SECONDS else failures + 1
                delay = reconnect_delay(failures)
                self._health.set_not_ready(str(error))
                log.warning("session_lost", reason=str(error), sqlstate=error.sqlstate, retry_seconds=round(delay, 2))
                self._health.record_loop()
                self._shutdown.wait(delay)

    def status(self) -> dict[str, object]:
        """The content of /status. Thread-safe."""
        return {
            "service": "cdc-relay",
            "name": self._settings.name,
            "version": __version__,
            "role": self._health.role,
            "slot": self._settings.slot,
            "delivered": self._reporter.delivered,
            "failed": self._reporter.failed,
            "handed_over": self._reporter.handed_over,
            "late": self._reporter.late,
            "clock_jumps": self._reporter.clock_jumps,
            "timeline": self._timeline,
            "timeline_changes": self._timeline_changes,
            "in_flight": self._metrics.relay_in_flight.value,
            "blocked_keys": self._metrics.blocked_keys.value,
            "replication_lag_bytes": self._metrics.replication_lag_bytes.value,
        }

    def _run_session(self) -> None:
        with contextlib.ExitStack() as resources:
            store = self._open_store(resources)
            self._check_setup(store)
            self._bookkeeping.start()
            if self._slot_is_older_than_publication:
                drop_slot_older_than_publication(store, self._settings.slot)
                self._slot_is_older_than_publication = False
            stream = self._acquire_slot(store, resources)
            if stream is None:
                return
            self._ever_connected = True
            self._check_timeline(store)
            self._after_acquire()
            session = ReplicationSession(
                self._settings,
                stream=stream,
                query_store=store,
                settle_store=self._open_store(resources),
                publisher=open_service_publisher(self._settings),
                shutdown=self._shutdown,
                must_reach_broker=not self._reached_broker,
                reporter=self._reporter,
                health=self._health,
            )
            self._set_role("active")
            log.info("relay_active", slot=self._settings.slot, publication=self._settings.publication)
            try:
                session.run()
            except ReplicationError as error:
                self._slot_is_older_than_publication = error.sqlstate == UNDEFINED_OBJECT
                raise
            finally:
                self._reached_broker = self._reached_broker or session.reached_broker
                self._metrics.relay_active.set(0)

    def _open_store(self, resources: contextlib.ExitStack) -> Store:
        store = open_service_store(self._settings, "cdc-relay")
        resources.callback(store.connection.close)
        return store

    def _check_setup(self, store: Store) -> None:
        schema, publication = self._settings.schema_name, self._settings.publication
        if problem := server_problem(store):
            raise SetupError(problem)
        if {migration.version for migration in migrations()} - applied_migrations(store):
            raise SetupError(f"the schema {schema} has no outbox, or an older one: run `outrider setup`")
        if problem := publication_problem(store, schema, publication):
            raise SetupError(f"{problem}: run `outrider setup`")
        handover, margin = handover_seconds(store), self._settings.send_timeout_seconds
        if handover is not None and handover <= margin:
            raise SetupError(
                f"the relay owns a new row for {handover:g} s, which is not longer than send_timeout_seconds "
                f"({margin:g}): lower send_timeout_seconds, or raise the {handover:g} s with "
                "`outrider setup --handover-after`"
            )

    def _check_timeline(self, store: Store) -> None:
        """Notice a failover that happened since the last session."""
        before, self._timeline = self._timeline, store.timeline()
        if before is not None and before != self._timeline:
            self._timeline_changes += 1
            log.warning(
                "timeline_changed", before=before, now=self._timeline, reason=FAILOVER_FOUND, hint=FAILOVER_REMEDY
            )

    # -- the slot -----------------------------------------------------------------------------------------------------

    def _acquire_slot(self, store: Store, resources: contextlib.ExitStack) -> ReplicationStream | None:
        """Start streaming as soon as no other relay holds the slot; None at a request to stop."""
        announced = False
        with contextlib.ExitStack() as standby:
            while not self._shutdown.requested:
                state = ensure_slot(store, self._settings.slot, failover=self._settings.failover_slot)
                stream = None if state.active else self._start_streaming()
                if stream is not None:
                    resources.callback(stream.close)
                    return stream
                self._ever_connected = True
                if not announced:
                    announced = True
                    self._set_role("standby")
                    log.info("standing_by", slot=self._settings.slot, held_by_pid=state.active_pid)
                    standby.enter_context(self._broker_probe())
                self._health.record_loop()
                self._shutdown.wait(self._settings.standby_poll_seconds * random.uniform(0.8, 1.2))  # noqa: S311 - jitter
        return None

    def _broker_probe(self) -> BrokerProbe:
        open_publisher = partial(open_service_publisher, self._settings)
        return BrokerProbe(open_publisher, self._health, every_seconds=self._settings.broker_check_seconds)

    def _start_streaming(self) -> ReplicationStream | None:
        """None if another relay took the slot first."""
        stream = ReplicationStream.open(
            self._settings.replication_dsn, connect_timeout_seconds=round(self._settings.connect_timeout_seconds)
        )
        try:
            stream.start(self._settings.slot, self._settings.publication)
        except ReplicationError as error:
            stream.close()
            if error.sqlstate == OBJECT_IN_USE:
                return None
            raise
        return stream

    def _set_role(self, role: Literal["active", "standby"]) -> None:
        self._metrics.relay_active.set(float(role == "active"))
        self._health.set_ready(role)
        self._bookkeeping.role_changed()
