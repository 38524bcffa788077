"""The doctor's failures and warnings, each produced on a real server."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any, LiteralString
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg import sql

from outrider.embedded.postgres import Postgres
from outrider.errors import SettingsError
from outrider.operations.doctor import DoctorOptions, DoctorSettings, Finding, examine
from outrider.storage.message import OLDEST_SCHEMA_VERSION, SCHEMA_VERSION
from outrider.storage.sql_files import script
from tests.fixtures.broker import Broker
from tests.fixtures.commands import run_outrider
from tests.fixtures.database import Database, create_outbox_database, drop_database
from tests.fixtures.rows import insert_rows
from tests.fixtures.servers import SharedPostgres
from tests.fixtures.stage import Stage
from tests.fixtures.waiting import wait_for


def findings(dsn: str, options: DoctorOptions | None = None, **settings: Any) -> list[Finding]:
    return list(examine(DoctorSettings(database_url=dsn, **settings), options or DoctorOptions()))  # type: ignore[arg-type]


def examined(stage: Stage, options: DoctorOptions | None = None, **settings: Any) -> list[Finding]:
    given = {"slot": stage.slot, "publication": stage.publication, **settings}
    return findings(stage.database.dsn, options, **given)


def line(found: Sequence[Finding], check: str, level: str = "failed") -> str:
    """The one line of this check, which must be of this level."""
    (finding,) = [finding for finding in found if finding.check == check]
    assert finding.level == level, finding
    return finding.line


def levels(found: Sequence[Finding]) -> dict[str, str]:
    return {finding.check: finding.level for finding in found}


def execute(database: Database, *statements: LiteralString) -> None:
    with database.connect() as connection:
        for statement in statements:
            connection.execute(statement)


@pytest.fixture
def login(database: Database) -> Iterator[Callable[..., str]]:
    """`login("REPLICATION", "GRANT ... TO {role}")`: the address of the database for a role of this test alone."""
    names = []

    def create(attributes: LiteralString = "", *grants: LiteralString) -> str:
        names.append(name := f"clerk_{uuid.uuid4().hex[:8]}")
        with database.connect() as connection:
            connection.execute(sql.SQL("CREATE ROLE {} LOGIN " + attributes).format(sql.Identifier(name)))
            for grant in grants:
                connection.execute(sql.SQL(grant).format(role=sql.Identifier(name)))
        parts = urlsplit(database.dsn)
        return parts._replace(netloc=f"{name}@{parts.hostname}:{parts.port}").geturl()

    yield create
    with database.connect() as connection:
        for name in names:
            connection.execute(sql.SQL("DROP OWNED BY {}").format(sql.Identifier(name)))
            connection.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(name)))


def test_a_database_without_an_outbox_fails_and_names_outrider_setup(bare_stage: Stage) -> None:
    found = examined(bare_stage, outrider_schema="nowhere")
    assert "no outbox in nowhere; run `outrider setup`" in line(found, "migrations")
    assert "there is no publication outbox; run `outrider setup`" in line(found, "publication")
    assert f"there is no slot {bare_stage.slot}; run `outrider setup`" in line(found, "slot")
    assert "indexes" not in levels(found)


def test_a_fresh_outbox_beside_another_one_gives_no_warning_about_publication_and_slot(
    stage: Stage, rabbit: Broker, postgres_server: SharedPostgres
) -> None:
    """The slot of the other outbox holds back the catalog, so that a new slot seems older than its publication."""
    other = create_outbox_database(postgres_server.url)
    try:
        slot = f"beside_{stage.slot}"
        env = {"OUTRIDER_DATABASE_URL": other.dsn, "OUTRIDER_SLOT": slot}
        assert run_outrider("setup", env=env).returncode == 0
        found = findings(other.dsn, slot=slot, broker_url=rabbit.url)
        about = [each for each in found if "publication" in each.check or each.check == "slot"]
        assert [each.level for each in about] == ["ok", "ok"]
        assert run_outrider("teardown", env=env).returncode == 0
    finally:
        drop_database(other)


def test_rows_in_an_unknown_format_are_explained_and_not_sent(stage: Stage, rabbit: Broker) -> None:
    queue = rabbit.declare_queue()
    for version in (SCHEMA_VERSION + 1, OLDEST_SCHEMA_VERSION - 1):
        insert_rows(stage.connection, 1, routing_key=queue, schema_version=version, owner="scheduler")
    insert_rows(stage.connection, 1, routing_key=queue, owner="scheduler")
    scheduler = stage.run_service("outrider.retry_scheduler", "--once", env=stage.environment(rabbit.url))
    assert scheduler.wait() == 0
    assert stage.count() == 2
    assert len(rabbit.get_all(queue, 1)) == 1
    explained = line(examined(stage), "schema_version", "warning")
    assert "2 rows have a schema_version that this version of outrider cannot read (it reads 1 to 1)" in explained
    env = {"OUTRIDER_DATABASE_URL": stage.database.dsn}
    listed = run_outrider("pending", "list", "--json", env=env).stdout.splitlines()
    assert [json.loads(each)["state"] for each in listed] == ["unsupported", "unsupported"]
    assert "2 in a format that this version cannot read" in run_outrider("status", env=env).stdout


def test_what_is_wrong_with_publication_slot_and_handover(stage: Stage) -> None:
    execute(
        stage.database,
        "ALTER PUBLICATION outbox SET (publish = 'insert, delete')",
        "ALTER TABLE outbox ALTER COLUMN next_attempt_at SET DEFAULT clock_timestamp() + interval '5 s'",
    )
    found = examined(stage, replication_url=stage.database.server_url)
    assert "must publish inserts and nothing else; run `outrider setup`" in line(found, "publication")
    assert "handed over to the scheduler after 5 s, which must be longer than send_timeout_seconds (10)" in line(
        found, "handover"
    )
    assert "no relay reads slot" in line(found, "relay", "warning")
    assert "keeps WAL until the disk is full" in line(found, "max_slot_wal_keep_size", "warning")
    assert f"leads to the database postgres, database_url to {stage.database.name}" in line(
        found, "replication connection"
    )
    execute(stage.database, "DROP PUBLICATION outbox", "CREATE PUBLICATION outbox FOR ALL TABLES")
    assert "is for all tables" in line(examined(stage), "publication")

    stage.connection.execute("SELECT pg_drop_replication_slot(%s)", [stage.slot])
    stage.connection.execute("SELECT pg_create_physical_replication_slot(%s)", [stage.slot])
    try:
        assert "belongs to a standby; choose another name with --slot" in line(examined(stage), "slot")
    finally:
        stage.connection.execute("SELECT pg_drop_replication_slot(%s)", [stage.slot])


def test_a_polling_outbox_needs_no_replication(bare_stage: Stage) -> None:
    bare_stage.connection.execute(script("setup/handover_after.sql", schema="public", handover_after="0"))
    found = examined(bare_stage)
    assert "not used" in line(found, "replication", "ok")
    assert {check for check, level in levels(found).items() if level != "ok"} == {"broker"}  # no broker_url is given


def test_what_is_wrong_with_the_tables(stage: Stage) -> None:
    execute(
        stage.database,
        "DROP INDEX outbox_due",
        "DELETE FROM outbox_migration WHERE version = 1",
        "ALTER TABLE outbox SET (autovacuum_enabled = false)",
    )
    with stage.database.connect(autocommit=False, application_name="sleepy") as sleepy:
        sleepy.execute("CREATE TABLE mine ()")
        with stage.database.connect() as connection:  # statistics are written when a session ends
            insert_rows(connection, 60_000)
            connection.execute("DELETE FROM outbox")
        found = examined(stage, DoctorOptions(longest_transaction_seconds=0))
        assert 'CREATE INDEX CONCURRENTLY outbox_due ON "public".outbox (next_attempt_at)' in line(found, "indexes")
        assert "run `outrider setup`" in line(found, "migrations")
        assert "(sleepy, idle in transaction) has been open for" in line(found, "oldest transaction", "warning")
        assert "ALTER TABLE outbox RESET (autovacuum_enabled)" in line(found, "vacuum", "warning")

        execute(
            stage.database,
            "INSERT INTO outbox_migration (version, name) VALUES (1, 'initial'), (999, 'future')",
            "ALTER TABLE outbox RESET (autovacuum_enabled)",
        )
        found = examined(stage)
        assert "has migration 999, this version knows" in line(found, "migrations")
        assert "60,000 dead rows in the outbox: autovacuum does not keep up" in line(found, "vacuum", "warning")
        assert line(found, "oldest transaction", "ok")


def test_due_rows_without_a_scheduler_and_stale_workers_are_warnings(stage: Stage) -> None:
    insert_rows(stage.connection, 3, due_in="-5 minutes")
    found = examined(stage)
    waiting = line(found, "scheduler", "warning")
    assert "3 rows are due, the oldest for 5 min, and no scheduler is running; start retry-scheduler" in waiting
    insert = "INSERT INTO outbox_worker (kind, name, role, version, host, pid, last_seen_at) VALUES "
    execute(stage.database, insert + "('scheduler', 'dead', 'active', '1', 'h', 1, now() - interval '1 hour')")
    found = examined(stage)
    assert "no scheduler is running" in line(found, "scheduler", "warning")
    assert "not seen lately: scheduler dead on h (60 min)" in line(found, "workers", "warning")
    execute(stage.database, insert + "('scheduler', 'new', 'active', '1', 'h', 1, now())")
    assert "although schedulers are running (1)" in line(examined(stage), "scheduler", "warning")


def test_grants_are_compared_with_those_that_each_job_needs(stage: Stage) -> None:
    jobs = ("producer", "relay", "scheduler", "consumer", "observer")
    names = {job: f"{job}_{uuid.uuid4().hex[:8]}" for job in jobs}
    stage.connection.execute(script("roles.sql", schema="public", **names))
    try:
        found = examined(stage, DoctorOptions(roles=names))
        assert {levels(found)[f"grants of the {job}"] for job in jobs} == {"ok"}
        relay = sql.Identifier(names["relay"])
        stage.connection.execute(sql.SQL("REVOKE DELETE, UPDATE ON outbox FROM {}").format(relay))
        stage.connection.execute(sql.SQL("REVOKE USAGE ON SCHEMA public FROM {}, PUBLIC").format(relay))
        found = examined(stage, DoctorOptions(roles={**names, "producer": "nobody_of_this_name"}))
        assert line(found, "grants of the relay") == (
            f"grants of the relay: {names['relay']} lacks USAGE on the schema, DELETE on outbox, UPDATE on outbox; "
            f'GRANT USAGE ON SCHEMA public TO "{names["relay"]}"; '
            f'GRANT DELETE, UPDATE ON public.outbox TO "{names["relay"]}"'
        )
        assert "there is no role nobody_of_this_name" in line(found, "grants of the producer")
        assert levels(found)["grants of the scheduler"] == "ok"
        assert "can act as" in line(found, "own grants", "ok")
    finally:
        for name in names.values():
            stage.connection.execute(sql.SQL("DROP OWNED BY {}").format(sql.Identifier(name)))
            stage.connection.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(name)))


def test_what_a_role_may_not_read_is_unknown_and_the_rest_is_checked(
    stage: Stage, login: Callable[..., str], rabbit: Broker
) -> None:
    execute(stage.database, "REVOKE SELECT ON pg_replication_slots FROM PUBLIC")
    dsn = login()
    found = findings(dsn, slot=stage.slot, broker_url=rabbit.url)
    for check in ("slot", "migrations", "scheduler", "workers"):
        assert re.search("could not be checked: .*permission denied for", line(found, check, "unknown"))
    assert "sessions of other roles could not be checked" in line(found, "oldest transaction", "unknown")
    assert "has the grants of no job" in line(found, "own grants", "warning")
    assert "has neither the REPLICATION attribute nor rds_replication" in line(found, "replication role")
    assert "permission denied to start WAL sender" in line(found, "replication connection")
    assert [finding.level for finding in found if finding.check == "exchanges"] == ["unknown", "ok"]
    assert {check: levels(found)[check] for check in ("server", "wal_level", "publication", "indexes", "broker")} == {
        "server": "ok",
        "wal_level": "ok",
        "publication": "ok",
        "indexes": "ok",
        "broker": "ok",
    }


def test_the_observer_role_can_read_everything(stage: Stage, login: Callable[..., str]) -> None:
    dsn = login("", "GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}", "GRANT pg_monitor TO {role}")
    found = findings(dsn, slot=stage.slot, replication_url=stage.database.dsn)
    assert not [finding for finding in found if "could not be checked" in finding.found]
    assert "can act as observer" in line(found, "own grants", "ok")
    assert "failed" not in levels(found).values()


def test_what_is_wrong_with_the_broker(stage: Stage, rabbit: Broker) -> None:
    existing = rabbit.declare_exchange()
    insert_rows(stage.connection, 1, exchange=existing)
    assert f"all exist: {existing}" in line(examined(stage, broker_url=rabbit.url), "exchanges", "ok")

    missing, own = f"{existing}-missing", f"{existing}-own"
    insert_rows(stage.connection, 1, exchange=missing)
    declarations = f'[{{"name": "q", "exchange": {{"name": "{own}", "type": "direct"}}, "routing_key": "q"}}]'
    insert_rows(stage.connection, 1, exchange=own, declarations=declarations)
    asked = DoctorOptions(exchanges=("no-such-exchange",))
    found = examined(stage, asked, broker_url=f"amqp://guest:guest@127.0.0.1:1//;{rabbit.url}")
    lines = [(finding.level, finding.line) for finding in found if finding.check in ("broker", "exchanges")]
    assert [level for level, _ in lines] == ["failed", "ok", "failed", "warning"]
    assert "127.0.0.1:1: ConnectionRefused" in lines[0][1]
    assert f"not on the broker: no-such-exchange, {missing}; messages for them are refused" in lines[2][1]
    assert f"not on the broker yet: {own}; their messages declare them when they are published" in lines[3][1]
    assert line(found, "confirms", "ok")

    parts = urlsplit(rabbit.url)
    wrong_password = parts._replace(netloc=f"guest:s3cret@{parts.hostname}:{parts.port}").geturl()
    refused = line(examined(stage, broker_url=wrong_password), "broker")
    assert "LoginRefused" in refused
    assert "s3cret" not in refused
    assert "VhostRefused" in line(examined(stage, broker_url=parts._replace(path="/no-such").geturl()), "broker")


def test_a_redis_broker_is_checked_without_exchanges(stage: Stage, redis_broker: Broker) -> None:
    found = examined(stage, broker_url=redis_broker.url)
    assert "answers" in line(found, "broker", "ok")
    assert "exchanges" not in levels(found)
    parts = urlsplit(redis_broker.url)
    refusing = examined(stage, broker_url=parts._replace(netloc="127.0.0.1:1").geturl())
    assert "ConnectionRefused" in line(refusing, "broker")


def test_an_unusable_broker_url_is_an_error_before_any_check() -> None:
    settings = DoctorSettings(database_url="dbname=x", broker_url="nix://x")  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match="broker_url"):
        examine(settings, DoctorOptions())


def test_a_server_without_logical_wal_autovacuum_or_timeout(
    private_postgres: Callable[..., Postgres], stage: Stage
) -> None:
    server = private_postgres(
        settings={
            "wal_level": "replica",
            "autovacuum": "off",
            "wal_sender_timeout": "0",
            "max_prepared_transactions": "2",
            "max_wal_senders": "1",
        }
    )
    database = create_outbox_database(server.dsn())
    execute(database, "BEGIN", "CREATE TABLE mine ()", "PREPARE TRANSACTION 'forgotten'")
    # A connection in physical replication mode is what a standby looks like.
    with psycopg.connect(server.dsn(), replication="true"):
        found = findings(database.dsn, DoctorOptions(longest_transaction_seconds=0))
    assert "replica, but the relay needs logical; run ALTER SYSTEM" in line(found, "wal_level")
    assert "autovacuum is off on this server" in line(found, "vacuum", "warning")
    assert "does not notice that the relay's machine is gone" in line(found, "wal_sender_timeout", "warning")
    assert "prepared transaction forgotten has been open" in line(found, "oldest transaction", "warning")
    assert "1 of 1 WAL senders are in use, and the relay is not connected yet" in line(found, "max_wal_senders")
    assert "raise max_wal_senders and restart" in line(found, "replication connection")
    other_server = examined(stage, replication_url=database.dsn)
    assert "replication_url and database_url lead to different servers" in line(other_server, "replication connection")


def test_a_slot_that_keeps_too_much_wal_is_a_warning_and_then_lost(private_postgres: Callable[..., Postgres]) -> None:
    server = private_postgres(
        settings={
            "max_slot_wal_keep_size": "64MB",
            "max_wal_size": "32MB",
            "min_wal_size": "32MB",
            "max_replication_slots": "1",
            "wal_sender_timeout": "2s",
        }
    )
    database = create_outbox_database(server.dsn())
    execute(
        database,
        script("setup/publication.sql", schema="public", publication="outbox"),
        script("setup/slot.sql", slot="outbox"),
    )
    with psycopg.connect(server.dsn(), replication="true"):
        found = findings(database.dsn)
    assert "is not a failover slot: after a failover" in line(found, "failover", "warning")
    assert "1 of 1 replication slots are in use" in line(found, "max_replication_slots", "warning")
    assert "2 s is too short for a relay that reports every 1 s" in line(found, "wal_sender_timeout", "warning")
    assert line(found, "max_slot_wal_keep_size", "ok")
    assert "the relay has none yet" in line(findings(database.dsn, slot="other"), "max_replication_slots")

    with database.connect() as connection:

        def write_wal() -> str:
            connection.execute("SELECT pg_logical_emit_message(false, 'test', 'x')")
            connection.execute("SELECT pg_switch_wal()")
            return str(connection.execute("SELECT wal_status FROM pg_replication_slots").fetchall()[0][0])

        def lose_the_slot() -> bool:
            connection.execute("CHECKPOINT")
            return write_wal() == "lost"

        for _ in range(3):  # of 16 MB each
            write_wal()
        assert "of at most 64.0 MB; start the relay" in line(findings(database.dsn), "retained WAL", "warning")
        wait_for(lose_the_slot, deadline_seconds=60)
    found = findings(database.dsn)
    assert "slot outbox is lost: wal_removed; start the relay" in line(found, "slot")
    assert "retained WAL" not in levels(found)
