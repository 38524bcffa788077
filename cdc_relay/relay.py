"""
The relay as a service: opens sessions until it is asked to stop.

At start a wrong address, a missing table or a missing privilege is an error for the operator, and `run` raises it.
Once it has been connected it never gives up: whatever happens to the database, it comes back with jittered backoff.
While another relay holds the slot it stands by, and takes over within `standby_poll_seconds` of the slot being free.
"""

from __future__ import annotations

import contextlib
import random
import time
from typing import Literal

from outrider.cdc_relay.replication_session import ReplicationSession
from outrider.cdc_relay.reporting import RelayReporter
from outrider.cdc_relay.slot import OBJECT_IN_USE, UNDEFINED_OBJECT, ensure_slot, give_up_slot
from outrider.cdc_relay.stream import ReplicationStream
from outrider.delivery.publisher import Publisher, open_publisher
from outrider.errors import DatabaseError, ReplicationError, SetupError
from outrider.operations.setup import (
    applied_migrations,
    handover_seconds,
    publication_problem,
    server_problem,
    slot_state,
)
from outrider.runtime.crash_points import crash_point
from outrider.runtime.reconnect_delay import reconnect_delay
from outrider.runtime.service_telemetry import Telemetry
from outrider.runtime.shutdown import Shutdown
from outrider.settings.models import RelaySettings
from outrider.storage.presence import INTERVAL_SECONDS, Presence
from outrider.storage.sql_files import migrations
from outrider.storage.store import Store, connect
from outrider.telemetry.logs import get_logger
from outrider.version import __version__

log = get_logger(__name__)

STEADY_SECONDS = 10.0


class Relay:
    """One process of the relay."""

    def __init__(self, settings: RelaySettings, shutdown: Shutdown, telemetry: Telemetry) -> None:
        self._settings = settings
        self._shutdown = shutdown
        self._metrics = telemetry.metrics
        self._health = telemetry.health
        self._report = RelayReporter(telemetry.metrics)
        self._role: Literal["active", "standby"] = "standby"
        self._presence = Presence("relay", settings.name)
        self._heartbeat_due = 0.0
        self._ever_connected = False
        self._reached_broker = False
        self._slot_is_older_than_publication = False
        self._after_acquire = crash_point("relay.after_acquire")
        # An unusable broker_url is found here, before anything is opened.
        self._new_publisher().close()

    def run(self) -> None:
        """Until a request to stop. Raises OutboxError for what cannot work."""
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
                self._health.not_ready(str(error))
                log.warning("session_lost", reason=str(error), sqlstate=error.sqlstate, retry_seconds=round(delay, 2))
                self._health.beat()
                self._shutdown.wait(delay)

    def status(self) -> dict[str, object]:
        """What /status shows. May be called from another thread."""
        return {
            "service": "cdc-relay",
            "name": self._settings.name,
            "version": __version__,
            "role": self._health.role,
            "slot": self._settings.slot,
            "delivered": self._report.delivered,
            "failed": self._report.failed,
            "handed_over": self._report.handed_over,
            "in_flight": self._metrics.relay_in_flight.value,
            "blocked_keys": self._metrics.blocked_keys.value,
            "replication_lag_bytes": self._metrics.replication_lag_bytes.value,
        }

    def _run_session(self) -> None:
        with contextlib.ExitStack() as resources:
            asking = self._open_store(resources)
            self._check(asking)
            if self._slot_is_older_than_publication:
                give_up_slot(asking, self._settings.slot)
                self._slot_is_older_than_publication = False
            stream = self._acquire(asking, resources)
            if stream is None:
                return
            self._ever_connected = True
            self._after_acquire()
            settling = self._open_store(resources)
            session = ReplicationSession(
                self._settings,
                stream=stream,
                asking=asking,
                settling=settling,
                publisher=self._new_publisher(),
                shutdown=self._shutdown,
                must_reach_broker=not self._reached_broker,
                heartbeat=lambda: self._heartbeat(asking),
                report=self._report,
                health=self._health,
            )
            self._take_role("active")
            log.info("relay_active", slot=self._settings.slot, publication=self._settings.publication)
            try:
                session.run()
            except ReplicationError as error:
                self._slot_is_older_than_publication = error.sqlstate == UNDEFINED_OBJECT
                raise
            finally:
                self._reached_broker = self._reached_broker or session.reached_broker
                self._metrics.relay_active.set(0)
            self._say_goodbye(asking)

    def _open_store(self, resources: contextlib.ExitStack) -> Store:
        connection = connect(
            self._settings.database_dsn,
            application_name=f"cdc-relay {self._settings.name}",
            connect_timeout_seconds=self._settings.connect_timeout_seconds,
        )
        resources.callback(connection.close)
        return Store(connection, self._settings.schema_name)

    def _new_publisher(self) -> Publisher:
        return open_publisher(
            self._settings.broker_url.get_secret_value(),
            send_timeout_seconds=self._settings.send_timeout_seconds,
            connect_timeout_seconds=self._settings.connect_timeout_seconds,
            tls=self._settings.broker_tls,
        )

    def _check(self, store: Store) -> None:
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
                f"new rows are the relay's for {handover:g} s, which is not longer than send_timeout_seconds "
                f"({margin:g}): lower it, or raise the former with `outrider setup --handover-after`"
            )

    # -- the slot -----------------------------------------------------------------------------------------------------

    def _acquire(self, store: Store, resources: contextlib.ExitStack) -> ReplicationStream | None:
        """The stream of the slot, once no other relay has it; None when asked to stop before."""
        announced = False
        while not self._shutdown.requested:
            state = ensure_slot(store, self._settings.slot, failover=self._settings.failover_slot)
            stream = None if state.active else self._start_streaming()
            if stream is not None:
                resources.callback(stream.close)
                return stream
            self._ever_connected = True
            if not announced:
                announced = True
                self._take_role("standby")
                log.info("standing_by", slot=self._settings.slot, held_by_pid=state.active_pid)
            self._health.beat()
            self._heartbeat(store)
            self._shutdown.wait(self._settings.standby_poll_seconds * random.uniform(0.8, 1.2))  # noqa: S311 - jitter
        self._say_goodbye(store)
        return None

    def _start_streaming(self) -> ReplicationStream | None:
        """None when another relay was faster."""
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

    def _take_role(self, role: Literal["active", "standby"]) -> None:
        self._role, self._heartbeat_due = role, 0.0
        self._metrics.relay_active.set(float(role == "active"))
        self._health.ready(role)

    # -- signs of life ------------------------------------------------------------------------------------------------

    def _heartbeat(self, store: Store) -> None:
        if time.monotonic() >= self._heartbeat_due:
            self._heartbeat_due = time.monotonic() + INTERVAL_SECONDS
            self._presence.show(store, self._role)
            self._report.slot(slot_state(store, self._settings.slot))

    def _say_goodbye(self, store: Store) -> None:
        with contextlib.suppress(DatabaseError):
            self._presence.leave(store)
