"""The doctor's checks as functions of facts: facts that no test server can produce, and limits."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from outrider.operations.doctor import broker, clock, publication, replication, roles, server, services, slot, table
from outrider.operations.doctor.finding import Finding, failed, ok
from outrider.operations.outbox_state import QueueCounts, ServicePresence
from outrider.operations.setup.facts import PublicationShape, Server, SlotState

SERVER = Server(
    server_version=170002,
    wal_level="logical",
    max_replication_slots=10,
    max_wal_senders=10,
    in_recovery=False,
    role="shop",
    may_replicate=True,
    database="shop",
)
LIMITS = server.Limits(wal_sender_timeout_seconds=60.0, max_slot_wal_keep_bytes=None, autovacuum=True)
USE = server.ReplicationUse(slots=1, senders=1, standbys=0)
SLOT = SlotState(
    name="outbox",
    plugin="pgoutput",
    database="shop",
    active=True,
    active_pid=1,
    wal_status="reserved",
    restart_lsn="0/1",
    confirmed_flush_lsn="0/1",
    invalidation_reason=None,
    conflicting=False,
    failover=False,
    retained_bytes=0,
    lag_bytes=0,
    safe_wal_bytes=None,
)
QUIET = QueueCounts(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, None, None)
WORKER = ServicePresence("scheduler", "s1", "active", "h", 1, "1", datetime.now(UTC), datetime.now(UTC), 1.0)
GIGABYTE = 1024**3


def test_a_line_has_the_finding_and_the_remedy_where_there_is_one() -> None:
    assert failed("wal_level", "replica", "restart").line == "wal_level: replica; restart"
    assert ok("wal_level", "logical").line == "wal_level: logical"


@pytest.mark.parametrize(
    ("finding", "level", "words"),
    [
        (server.check_version(SERVER), "ok", "PostgreSQL 17.2"),
        (server.check_version(SERVER._replace(server_version=130011)), "failed", "upgrade to 14"),
        (server.check_version(SERVER._replace(in_recovery=True)), "failed", "point database_url at the primary"),
        (server.check_sender_timeout(LIMITS, 1), "ok", "60 s"),
        (server.check_sender_timeout(LIMITS, 30), "warning", "raise it to 90 s or more"),
        (server.check_senders(SERVER, replace(USE, senders=10), SLOT), "warning", "cannot take over"),
        (clock.check_clock(0.4), "ok", "0.400 s"),
        (clock.check_clock(3.0), "warning", "3.0 s ahead of"),
        (clock.check_clock(-3.0), "warning", "3.0 s behind"),
        (
            replication.check_connection(
                replication.ReplicationProbe(error="x", replication_ignored=True), database="shop", system="7"
            ),
            "failed",
            "a pooler opened an ordinary connection",
        ),
        (
            replication.check_connection(
                replication.ReplicationProbe(system="8", database="shop"), database="shop", system="7"
            ),
            "failed",
            "different servers",
        ),
        (
            replication.check_connection(
                replication.ReplicationProbe(system="8", database="shop"), database="shop", system=None
            ),
            "unknown",
            "could not be read",
        ),
        (replication.check_role("shop", None), "warning", "this server has no role shop"),
        (
            slot.check_slot(replace(SLOT, wal_status="unreserved"), "outbox", "shop"),
            "warning",
            "at the next checkpoint",
        ),
        (slot.check_retained(SLOT, LIMITS), "ok", "keeps 0 bytes"),
        (slot.check_retained(replace(SLOT, retained_bytes=2 * GIGABYTE), LIMITS), "warning", "does not confirm"),
        (slot.check_retained(replace(SLOT, wal_status="extended"), LIMITS), "warning", "more than max_wal_size"),
        (table.check_handover(None, send_timeout_seconds=10), "warning", "unknown form"),
        (table.check_oldest_transaction(table.OldestTransaction("x", 1.0, 0), 300), "ok", "1.0 s"),
        (services.check_scheduler(QUIET, []), "ok", "no row is due"),
        (services.check_scheduler(replace(QUIET, due=1, overdue_seconds=1), [WORKER]), "ok", "1 running, 1 rows"),
        (services.check_scheduler(replace(QUIET, due=1, overdue_seconds=90), [WORKER]), "warning", "start more"),
        (services.check_workers([WORKER]), "ok", "scheduler s1 (active)"),
        (services.check_workers([replace(WORKER, silent_seconds=99.0)] * 5), "warning", "and 2 more"),
    ],
)
def test_each_check_says_what_it_found(finding: Finding, level: str, words: str) -> None:
    assert finding.level == level
    assert words in finding.line
    assert "\n" not in finding.line


def test_retained_wal_is_compared_with_its_limit() -> None:
    limits = replace(LIMITS, max_slot_wal_keep_bytes=GIGABYTE)
    assert slot.check_retained(replace(SLOT, retained_bytes=GIGABYTE // 4), limits).level == "ok"
    assert slot.check_retained(replace(SLOT, retained_bytes=GIGABYTE * 3 // 4), limits).level == "warning"


@pytest.mark.parametrize(
    ("version", "is_failover", "standbys", "levels"),
    [(160000, False, 1, []), (170000, True, 1, ["ok"]), (170000, False, 0, ["ok"]), (170000, False, 1, ["warning"])],
)
def test_a_slot_without_failover_is_a_warning_only_if_there_is_a_standby(
    version: int, is_failover: bool, standbys: int, levels: list[str]
) -> None:
    found = slot.check_failover(
        replace(SLOT, failover=is_failover), SERVER._replace(server_version=version), replace(USE, standbys=standbys)
    )
    assert [finding.level for finding in found] == levels


def test_the_remedy_of_a_publication_with_other_tables_is_to_drop_it() -> None:
    shape = PublicationShape(False, True, True, False, False, ["public.outbox"], False)
    assert publication.check_publication(shape, "public", "outbox").remedy == "run `outrider setup`"
    others = shape._replace(tables=["public.orders", "public.outbox"])
    assert "drop it or choose another" in publication.check_publication(others, "public", "outbox").remedy


def test_every_job_of_roles_sql_is_known_with_its_privileges() -> None:
    required = roles.required_grants()
    assert {"producer", "relay", "scheduler", "observer"} <= set(roles.jobs_of(required))
    assert roles.RequiredGrant("producer", "INSERT", "outbox") in required
    assert roles.RequiredGrant("producer", "SELECT", "outbox") not in required
    assert roles.RequiredGrant("scheduler", "DELETE", "outbox_dead_letter") in required
    assert all(roles.RequiredGrant(job, "USAGE", None) in required for job in roles.jobs_of(required))


def test_every_index_of_the_schema_is_known_with_its_statement() -> None:
    statements = table.index_statements("shop")
    assert statements["outbox_due"] == 'CREATE INDEX outbox_due ON "shop".outbox (next_attempt_at)'
    assert statements["outbox_dedup"].startswith("CREATE UNIQUE INDEX outbox_dedup ")


def test_exchanges_that_rows_declare_are_told_from_exchanges_that_must_exist() -> None:
    declaring = '[{"name": "q", "exchange": {"name": "own", "type": "direct"}, "routing_key": "q"}]'
    routes = [
        broker.Route(""),
        broker.Route("orders"),
        broker.Route("own", declaring),
        broker.Route("torn", '[{"exchange": 1}]'),
    ]
    assert broker.exchanges_of_routes(routes) == ({"orders", "torn"}, {"own"})
    levels = [finding.level for finding in broker.check_exchanges({"orders", "own"}, ["orders", "own"], {"own"})]
    assert levels == ["failed", "warning"]
