"""
The database's side of an examination: reads the facts, and runs every check that they allow, in a fixed order.
"""

from __future__ import annotations

from collections.abc import Iterator

from psycopg.conninfo import conninfo_to_dict

from outrider.operations.diagnostics import Unavailable, fetch, only_column, try_fetch
from outrider.operations.doctor import publication as publications
from outrider.operations.doctor import replication, roles, server, services, slot, table
from outrider.operations.doctor.broker import Route
from outrider.operations.doctor.clock import check_clock, clock_offset
from outrider.operations.doctor.finding import Finding, cannot_see, ok
from outrider.operations.doctor.options import DoctorOptions, DoctorSettings
from outrider.operations.setup.facts import (
    SlotState,
    applied_migrations,
    handover_seconds,
    publication_shape,
    slot_state,
)
from outrider.operations.state import COUNT_LIMIT, read_queues, read_workers
from outrider.storage.sql_files import migrations
from outrider.storage.store import Store

MOST_ROUTES = 200


class DatabaseCheck:
    def __init__(self, store: Store, settings: DoctorSettings, questions: DoctorOptions) -> None:
        self._store = store
        self._settings = settings
        self._questions = questions
        self._server = fetch(store, server.Server, "server_facts")[0]
        self._limits = fetch(store, server.Limits, "doctor_limits")[0]
        # Before a replication connection is tried, which would count.
        self._use = try_fetch(lambda: fetch(store, server.Use, "doctor_replication_use")[0])
        self._handover = handover_seconds(store)
        self._vacuum = fetch(store, table.Vacuum, "doctor_vacuum", schema=settings.schema_name)
        """Empty where there is no outbox."""

    def findings(self) -> Iterator[Finding]:
        yield server.check_version(self._server)
        if self._server.in_recovery:
            return  # all the rest is to be asked of the primary
        yield from self._replication()
        yield self._migrations()
        if self._vacuum:
            yield from self._tables()
            yield from self._roles()
            yield from self._services()
        yield check_clock(clock_offset(self._store))

    def routes(self) -> list[Route] | Unavailable:
        """Where pending rows go."""
        if not self._vacuum:
            return []
        return try_fetch(lambda: fetch(self._store, Route, "doctor_exchanges", most=COUNT_LIMIT, groups=MOST_ROUTES))

    # -- replication --------------------------------------------------------------------------------------------------

    def _replication(self) -> Iterator[Finding]:
        settings = self._settings
        found = try_fetch(lambda: slot_state(self._store, settings.slot))
        shape = publication_shape(self._store, settings.publication)
        if found is None and shape is None and self._handover == 0:
            yield ok("replication", "not used: no publication, no slot, and new rows are the scheduler's at once")
            return
        yield server.check_wal_level(self._server)
        yield server.check_sender_timeout(self._limits, settings.status_interval_seconds)
        yield from self._wire()
        yield publications.check_publication(shape, settings.schema_name, settings.publication)
        if isinstance(found, Unavailable):
            yield cannot_see("slot", found)
        else:
            yield from self._slot(found)
        yield slot.check_wal_limit(self._limits)
        if self._vacuum:
            yield table.check_handover(self._handover, send_timeout_seconds=settings.send_timeout_seconds)

    def _wire(self) -> Iterator[Finding]:
        dsn = self._settings.replication_dsn
        role = str(conninfo_to_dict(dsn).get("user") or self._server.role)
        may = fetch(self._store, only_column, "doctor_replication_role", role=role)
        yield replication.check_role(role, may[0] if may else None)
        system = try_fetch(lambda: fetch(self._store, only_column, "doctor_system"))
        yield replication.check_connection(
            replication.probe(dsn, connect_timeout_seconds=self._settings.connect_timeout_seconds),
            database=self._server.database,
            system=None if isinstance(system, Unavailable) else system[0],
        )

    def _slot(self, found: SlotState | None) -> Iterator[Finding]:
        names = {"publication": self._settings.publication, "slot": self._settings.slot}
        use = self._use
        if isinstance(use, Unavailable):
            yield cannot_see("max_replication_slots", use)
        else:
            yield server.check_slots(self._server, use, found)
            yield server.check_senders(self._server, use, found)
        yield slot.check_slot(found, self._settings.slot, self._server.database)
        if found is None:
            return
        for ages in fetch(self._store, publications.Ages, "doctor_ages", **names):
            yield from publications.check_age(ages, found)
        yield slot.check_reader(found)
        if not found.lost:
            yield slot.check_retained(found, self._limits)
        if not isinstance(use, Unavailable):
            yield from slot.check_failover(found, self._server, use)

    # -- tables, roles, services --------------------------------------------------------------------------------------

    def _migrations(self) -> Finding:
        applied = try_fetch(lambda: applied_migrations(self._store))
        if isinstance(applied, Unavailable):
            return cannot_see("migrations", applied)
        known = [migration.version for migration in migrations()]
        return table.check_migrations(applied, known, self._settings.schema_name)

    def _tables(self) -> Iterator[Finding]:
        schema = self._settings.schema_name
        yield table.check_indexes(fetch(self._store, only_column, "doctor_indexes", schema=schema), schema)
        yield table.check_vacuum(self._vacuum[0], self._limits)
        oldest = fetch(self._store, table.OldestTransaction, "doctor_oldest_transaction")[0]
        yield table.check_oldest_transaction(oldest, self._questions.longest_transaction_seconds)

    def _roles(self) -> Iterator[Finding]:
        needed, schema, own = roles.needs(), self._settings.schema_name, self._server.role
        named = self._questions.roles
        by_job = {job: named.get(job, f"outbox_{job}") for job in roles.jobs(needed)}
        there = fetch(self._store, only_column, "doctor_roles", names=list(by_job.values()))
        asked = [(role, need) for need in needed for role in (by_job[need.job], own)]
        missing = fetch(
            self._store,
            roles.Missing,
            "doctor_missing_grants",
            schema=schema,
            roles=[role for role, _ in asked],
            relations=[need.relation for _, need in asked],
            privileges=[need.privilege for _, need in asked],
        )
        yield roles.check_own_role(own, [job for job in by_job if not roles.lacking(needed, job, own, missing)])
        yield from roles.check_unknown_roles(named, there)
        for job, role in by_job.items():
            if role in there:
                yield roles.check_role(job, role, roles.lacking(needed, job, role, missing), schema)

    def _services(self) -> Iterator[Finding]:
        queues = try_fetch(lambda: read_queues(self._store))
        workers = try_fetch(lambda: read_workers(self._store))
        for unseen, check in ((queues, "scheduler"), (workers, "workers")):
            if isinstance(unseen, Unavailable):
                yield cannot_see(check, unseen)
        if not isinstance(workers, Unavailable):
            if not isinstance(queues, Unavailable):
                yield services.check_scheduler(queues, workers)
            yield services.check_workers(workers)
