"""Synchronous replication, promotion of a standby, and transactions of any size."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from outrider.embedded.postgres import Postgres
from outrider.storage.sql_files import script
from tests.fixtures.broker import Broker
from tests.fixtures.certificates import make_certificate
from tests.fixtures.commands import run_outrider
from tests.fixtures.database import Database, create_outbox_database
from tests.fixtures.postgres_tls import require_tls, tls_url
from tests.fixtures.postgres_versions import postgres_binaries
from tests.fixtures.services import RunService
from tests.fixtures.stage import Stage
from tests.fixtures.standby import start_standby
from tests.fixtures.waiting import wait_for


def resident_megabytes(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise AssertionError("no VmRSS")


@contextmanager
def absent_standby(server: Postgres) -> Iterator[None]:
    """A commit is in the WAL, and waits for a standby that does not exist before other sessions see it."""
    with psycopg.connect(server.dsn(), autocommit=True) as administrator:

        def wait_for_standby(name: str) -> None:
            administrator.execute(sql.SQL("ALTER SYSTEM SET synchronous_standby_names = {}").format(name))
            administrator.execute("SELECT pg_reload_conf()")
            wait_for(lambda: administrator.execute("SHOW synchronous_standby_names").fetchone() == (name,))

        wait_for_standby("nobody")
        yield
        wait_for_standby("")


class Writer:
    """
    An application that inserts messages of one key, in transactions that lock the entity that the key stands for.

    Only its commits wait for the standby: by default, those of this database do not.
    """

    def __init__(self, stage: Stage, queue: str) -> None:
        self.event_ids: list[str] = []
        self._stage = stage
        self._queue = queue
        self._threads: list[threading.Thread] = []
        default = sql.SQL("ALTER DATABASE {} SET synchronous_commit = local")
        stage.connection.execute(default.format(sql.Identifier(stage.database.name)))
        stage.connection.execute("CREATE TABLE entity (id int PRIMARY KEY, version int)")
        stage.connection.execute("INSERT INTO entity VALUES (1, 0)")

    def start_insert(self, next_attempt_at: str = "2100-01-01") -> None:
        """In a thread: returns when the commit is in the WAL, or waits for the lock."""
        connection = self._stage.database.connect()
        connection.execute("SET synchronous_commit = on")

        def insert() -> None:
            with connection, connection.transaction():
                connection.execute("UPDATE entity SET version = version + 1")
                self.event_ids += self._stage.insert_with(
                    connection, self._queue, ordering_key="entity-1", next_attempt_at=next_attempt_at
                )

        thread = threading.Thread(target=insert)
        thread.start()
        self._threads.append(thread)
        wait_for(
            lambda: self._stage.connection.execute(
                "SELECT 1 FROM pg_stat_activity WHERE pid = %s AND wait_event IN ('SyncRep', 'transactionid', 'tuple')",
                [connection.info.backend_pid],
            ).fetchone(),
            message="the transaction does not wait",
        )

    def finish(self) -> None:
        for thread in self._threads:
            thread.join(30)


def test_a_row_that_is_not_visible_yet_is_delivered_and_settled_once_it_is_visible(
    private_postgres: Callable[..., Postgres], run_service: RunService, rabbit: Broker
) -> None:
    server = private_postgres()
    stage = Stage(create_outbox_database(server.dsn()), run_service)
    stage.set_up()
    queue = rabbit.declare_queue()
    stage.start_relay(rabbit.url)
    connection = stage.database.connect()
    with absent_standby(server):
        inserting = threading.Thread(target=lambda: stage.insert_with(connection, queue, 3))
        inserting.start()
        assert len(rabbit.get_all(queue, 3)) == 3
        assert stage.count() == 0
        assert inserting.is_alive()
    inserting.join(10)
    stage.wait_until_empty()
    stage.wait_until_confirmed()
    assert rabbit.depth(queue) == 0
    for each in (connection, stage):
        each.close()


def test_a_relay_that_starts_while_a_commit_waits_for_a_standby_keeps_the_order_of_its_key(
    private_postgres: Callable[..., Postgres], run_service: RunService, rabbit: Broker
) -> None:
    server = private_postgres()
    stage = Stage(create_outbox_database(server.dsn()), run_service)
    stage.set_up()
    queue = rabbit.declare_queue()
    writer = Writer(stage, queue)
    with absent_standby(server):
        writer.start_insert()
        stage.start_relay(rabbit.url).wait_for_event("caught_up")
        writer.start_insert()
        assert stage.count() == 0
    writer.finish()
    assert [message.message_id for message in rabbit.get_all(queue, 2)] == writer.event_ids
    stage.wait_until_empty()
    stage.wait_until_confirmed()
    stage.close()


def test_a_relay_that_restarts_while_a_late_row_waits_for_a_standby_still_blocks_its_key(
    private_postgres: Callable[..., Postgres], run_service: RunService, rabbit: Broker
) -> None:
    """The first relay leaves the row to the scheduler, and the second one can neither read nor see it."""
    server = private_postgres()
    stage = Stage(create_outbox_database(server.dsn()), run_service)
    stage.set_up()
    queue = rabbit.declare_queue()
    writer = Writer(stage, queue)
    with absent_standby(server):
        relay = stage.start_relay(rabbit.url, shutdown_timeout_seconds=1)
        writer.start_insert(next_attempt_at="2000-01-01")
        assert relay.stop() == 0
        stage.start_relay(rabbit.url).wait_for_event("caught_up")
        writer.start_insert()
    writer.finish()
    wait_for(lambda: [row["owner"] for row in stage.rows()] == ["relay", "scheduler"], message="B is handed over")
    assert [row["event_id"] for row in stage.rows()] == writer.event_ids
    assert rabbit.depth(queue) == 0
    stage.close()


def test_all_database_connections_of_the_relay_use_tls_if_the_url_demands_it(
    private_postgres: Callable[..., Postgres], run_service: RunService, rabbit: Broker, tmp_path: Path
) -> None:
    server = private_postgres(binaries=postgres_binaries(17))  # the newest version here was built without TLS
    make_certificate(tmp_path)
    database = create_outbox_database(server.dsn())
    require_tls(server, tmp_path)
    trusting = tls_url(server, sslmode="verify-full", sslrootcert=str(tmp_path / "cert.pem"))
    stage = Stage(Database(database.name, trusting), run_service)
    stage.set_up()
    queue = rabbit.declare_queue()
    relay = stage.start_relay(rabbit.url)
    sizes = (10, 8_000, 16_384, 40_000)  # around the buffers of libpq and of TLS
    event_ids = [event_id for size in sizes for event_id in stage.insert(queue, 20, headers={"filler": "x" * size})]
    assert [message.message_id for message in rabbit.get_all(queue, len(event_ids))] == event_ids
    stage.wait_until_empty()
    stage.wait_until_confirmed()
    connections = stage.connection.execute(
        "SELECT backend_type, ssl FROM pg_stat_activity JOIN pg_stat_ssl USING (pid) WHERE pid <> pg_backend_pid()"
    ).fetchall()
    assert set(connections) == {("walsender", True), ("client backend", True)}
    assert relay.stop() == 0

    untrusting = stage.start_relay(
        rabbit.url,
        wait=None,
        replication_url=Database(database.name, tls_url(server, sslmode="verify-full", sslrootcert="system")).dsn,
    )
    untrusting.wait_for_line("certificate")
    stage.close()


def test_memory_stays_bounded_during_a_huge_transaction(stage: Stage, rabbit: Broker) -> None:
    queue = rabbit.declare_queue()
    relay = stage.start_relay(rabbit.url, window_bytes=4_000_000)
    stage.insert(queue, 500)
    stage.wait_until_empty()
    before = resident_megabytes(relay.pid)
    stage.insert(queue, 20_000, headers={"filler": "x" * 4000})  # 80 MB
    peak = before
    while stage.count():
        peak = max(peak, resident_megabytes(relay.pid))
    print(f"resident memory grew by {peak - before:.1f} MB")
    assert peak - before < 40
    assert rabbit.depth(queue) == 20_500


@pytest.mark.parametrize(("version", "failover_slot"), [(14, False), (17, True), (18, True), (18, False)])
def test_after_a_promotion_the_relay_continues_on_the_new_primary(
    private_postgres: Callable[..., Postgres],
    run_service: RunService,
    rabbit: Broker,
    version: int,
    failover_slot: bool,
) -> None:
    binaries = postgres_binaries(version)
    primary = private_postgres(binaries=binaries, settings={"hot_standby_feedback": "on"})
    database = create_outbox_database(primary.dsn())
    stage = Stage(database, run_service)
    stage.set_up(slot=False)
    stage.connection.execute("SELECT pg_create_physical_replication_slot('standby')")
    stage.connection.execute(script("setup/slot_failover.sql" if failover_slot else "setup/slot.sql", slot=stage.slot))
    stage.close()
    synchronising = {"sync_replication_slots": "on"} if failover_slot else {}
    standby = start_standby(
        private_postgres, primary, binaries=binaries, settings={"primary_slot_name": "standby", **synchronising}
    )

    queue = rabbit.declare_queue()
    hosts = f"postgresql://postgres@127.0.0.1:{primary.port},127.0.0.1:{standby.port}/{database.name}"
    relay = stage.start_relay(
        rabbit.url, database_url=f"{hosts}?target_session_attrs=read-write", failover_slot=failover_slot
    )
    stage.insert(queue, 5)
    assert len(rabbit.get_all(queue, 5)) == 5
    stage.wait_until_empty()
    replica = Stage(Database(database.name, standby.dsn()), run_service, slot=stage.slot)
    if failover_slot:
        synchronised = "SELECT synced AND NOT temporary FROM pg_replication_slots WHERE slot_name = %s"

        def is_synchronised() -> bool:
            # Only such a record advances the slot; the server itself writes one every 15 seconds.
            stage.connection.execute("SELECT pg_log_standby_snapshot()")
            return replica.connection.execute(synchronised, [stage.slot]).fetchone() == (True,)

        wait_for(
            is_synchronised,
            deadline_seconds=60,
            message=f"the slot does not reach the standby: {standby.log()[-500:]}",
        )
    flushed = stage.connection.execute("SELECT pg_current_wal_flush_lsn()").fetchone()
    wait_for(lambda: replica.connection.execute("SELECT pg_last_wal_replay_lsn() >= %s", flushed).fetchone() == (True,))
    stage.close()
    primary.kill()
    replica.connection.execute("SELECT pg_promote()")
    wait_for(
        lambda: len([each for each in relay.events() if each["event"] == "relay_active"]) == 2, deadline_seconds=60
    )
    (event_id,) = replica.insert(queue)
    assert rabbit.get_all(queue, 1)[0].message_id == event_id
    replica.wait_until_empty()
    assert "synchronized_standby_slots" in relay.wait_for_event("timeline_changed", before=1, now=2)["hint"]
    doctor = run_outrider("doctor", env=replica.environment(rabbit.url))
    assert re.search(
        r"^warning +timeline: 2, begun .* ago while relay \S+ was running: transactions that had not reached",
        doctor.stdout,
        re.MULTILINE,
    ), doctor.stdout
    status = run_outrider("status", env={**replica.environment(rabbit.url), "COLUMNS": "160"}).stdout
    assert "2: this server was promoted or restored, see `outrider doctor`" in status
    created = [each for each in relay.events() if each["event"] == "slot_created"]
    assert bool(created) is not failover_slot
    replica.close()
