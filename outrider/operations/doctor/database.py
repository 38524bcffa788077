"""
The database: reads the facts, and runs every check that they allow, in a fixed order.
"""

from __future__ import annotations

from collections.abc import Iterator

from psycopg.conninfo import conninfo_to_dict

from outrider.operations.diagnostic_queries import Unavailable, fetch, fetch_one, only_column, try_fetch
from outrider.operations.doctor import (
    event_log,
    publication,
    replication,
    roles,
    server,
    services,
    slot,
    table,
    timeline,
)
from outrider.operations.doctor.broker import Route
from outrider.operations.doctor.clock import CLOCK_CHECK, check_clock, check_database_clock, clock_offset
from outrider.operations.doctor.finding import Finding, not_checked, ok
from outrider.operations.doctor.options import DoctorOptions, DoctorSettings
from outrider.operations.event_log import read_log_origin, read_log_state
from outrider.operations.outbox_state import COUNT_LIMIT, read_queue_counts, read_workers
from outrider.operations.setup.facts import (
    SlotState,
    applied_migrations,
    handover_seconds,
    publication_shape,
    read_server,
    slot_state,
)
from outrider.storage.sql_files import migrations
from outrider.storage.store import Store

MOST_ROUTES = 200


class DatabaseCheck:
    def __init__(self, store: Store, settings: DoctorSettings, options: DoctorOptions) -> None:
        self._store = store
        self._settings = settings
        self._options = options
        self._server = read_server(store)
        self._limits = fetch_one(store, server.Limits, "doctor_limits")
        # Read before the replication connection is opened, which would be counted.
        self._use = try_fetch(fetch_one, store, server.ReplicationUse, "doctor_replication_use")
        self._handover = handover_seconds(store)
        self._vacuum = fetch(store, table.VacuumState, "doctor_vacuum", schema=settings.schema_name)
        """Empty if there is no outbox."""

    def findings(self) -> Iterator[Finding]:
        yield server.check_version(self._server)
        if self._server.in_recovery:
            return  # only the primary can answer the rest
        yield from self._check_replication()
        yield self._check_migrations()
        if self._vacuum:
            yield from self._check_tables()
            yield from self._check_log()
            yield from self._check_roles()
            yield from self._check_services()
            ahead = try_fetch(fetch_one, self._store, only_column, "doctor_clock")
            yield not_checked(CLOCK_CHECK, ahead) if isinstance(ahead, Unavailable) else check_database_clock(ahead)
        yield check_clock(clock_offset(self._store))

    def routes(self) -> list[Route] | Unavailable:
        """The exchanges and declarations of pending rows."""
        if not self._vacuum:
            return []
        return try_fetch(fetch, self._store, Route, "doctor_exchanges", most=COUNT_LIMIT, groups=MOST_ROUTES)

    # -- replication --------------------------------------------------------------------------------------------------

    def _check_replication(self) -> Iterator[Finding]:
        settings = self._settings
        found = try_fetch(slot_state, self._store, settings.slot)
        shape = publication_shape(self._store, settings.publication)
        if found is None and shape is None and self._handover == 0:
            yield ok("replication", "not used: no publication, no slot, and the scheduler delivers all rows")
            return
        yield server.check_wal_level(self._server)
        yield server.check_sender_timeout(self._limits, settings.status_interval_seconds)
        yield from self._check_replication_connection()
        yield publication.check_publication(shape, settings.schema_name, settings.publication)
        if isinstance(found, Unavailable):
            yield not_checked("slot", found)
        else:
            yield from self._check_slot(found)
        yield slot.check_wal_limit(self._limits)
        if self._vacuum:
            yield table.check_handover(self._handover, send_timeout_seconds=settings.send_timeout_seconds)

    def _check_replication_connection(self) -> Iterator[Finding]:
        dsn = self._settings.replication_dsn
        role = str(conninfo_to_dict(dsn).get("user") or self._server.role)
        may_replicate = fetch(self._store, only_column, "doctor_replication_role", role=role)
        yield replication.check_role(role, may_replicate[0] if may_replicate else None)
        system = try_fetch(fetch_one, self._store, only_column, "doctor_system")
        yield replication.check_connection(
            replication.probe(dsn, connect_timeout_seconds=self._settings.connect_timeout_seconds),
            database=self._server.database,
            system=None if isinstance(system, Unavailable) else system,
        )

    def _check_slot(self, found: SlotState | None) -> Iterator[Finding]:
        use = self._use
        if isinstance(use, Unavailable):
            yield not_checked("max_replication_slots", use)
        else:
            yield server.check_slots(self._server, use, found)
            yield server.check_senders(self._server, use, found)
        yield slot.check_slot(found, self._settings.slot, self._server.database)
        if found is None:
            return
        yield slot.check_reader(found)
        if not found.lost:
            yield slot.check_retained(found, self._limits)
        if not isinstance(use, Unavailable):
            yield from slot.check_failover(found, self._server, use)
        if self._vacuum:
            promotion = try_fetch(fetch_one, self._store, timeline.Promotion, "doctor_promotion")
            yield timeline.check_timeline(self._store.timeline(), promotion)

    # -- tables, roles, services --------------------------------------------------------------------------------------

    def _check_migrations(self) -> Finding:
        applied = try_fetch(applied_migrations, self._store)
        if isinstance(applied, Unavailable):
            return not_checked("migrations", applied)
        known = [migration.version for migration in migrations()]
        return table.check_migrations(applied, known, self._settings.schema_name)

    def _check_tables(self) -> Iterator[Finding]:
        schema = self._settings.schema_name
        yield table.check_columns(fetch(self._store, only_column, "doctor_columns", schema=schema), schema)
        yield table.check_indexes(fetch(self._store, only_column, "doctor_indexes", schema=schema), schema)
        yield table.check_vacuum(self._vacuum[0], self._limits)
        oldest = fetch_one(self._store, table.OldestTransaction, "doctor_oldest_transaction")
        yield table.check_oldest_transaction(oldest, self._options.longest_transaction_seconds)

    def _check_log(self) -> Iterator[Finding]:
        state = read_log_state(self._store, most=COUNT_LIMIT)
        if isinstance(state, Unavailable):
            yield not_checked("event log", state)
            return
        origin = try_fetch(read_log_origin, self._store)
        if isinstance(origin, Unavailable):
            yield not_checked("event log", origin)
        else:
            yield event_log.check_origin(origin, restored=state.restored)
        yield event_log.check_readers(state, self._options.longest_transaction_seconds)

    def _check_roles(self) -> Iterator[Finding]:
        required, schema, own_role = roles.required_grants(), self._settings.schema_name, self._server.role
        given = self._options.roles
        by_job = {job: given.get(job, f"outbox_{job}") for job in roles.jobs_of(required)}
        existing = fetch(self._store, only_column, "doctor_roles", names=list(by_job.values()))
        checked = [(role, grant) for grant in required for role in (by_job[grant.job], own_role)]
        missing = fetch(
            self._store,
            roles.MissingGrant,
            "doctor_missing_grants",
            schema=schema,
            roles=[role for role, _ in checked],
            relations=[grant.relation for _, grant in checked],
            privileges=[grant.privilege for _, grant in checked],
        )
        able = [job for job in by_job if not roles.missing_for(required, job, own_role, missing)]
        yield roles.check_own_role(own_role, able)
        yield from roles.check_unknown_roles(given, existing)
        for job, role in by_job.items():
            if role in existing:
                yield roles.check_role(job, role, roles.missing_for(required, job, role, missing), schema)

    def _check_services(self) -> Iterator[Finding]:
        queues = try_fetch(read_queue_counts, self._store)
        workers = try_fetch(read_workers, self._store)
        if isinstance(queues, Unavailable):
            yield not_checked("scheduler", queues)
        if isinstance(workers, Unavailable):
            yield not_checked("workers", workers)
            return
        if not isinstance(queues, Unavailable):
            yield services.check_scheduler(queues, workers)
            yield from services.check_schema_versions(queues)
        yield services.check_workers(workers)
