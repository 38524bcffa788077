"""The scheduler as a process, against real servers: due messages are delivered once and in order, also after faults."""

from __future__ import annotations

import json
import signal
import urllib.error
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from outrider.storage.sql_files import script
from tests.fixtures.broker import Broker
from tests.fixtures.database import Database
from tests.fixtures.proxy import FaultProxy
from tests.fixtures.rows import insert_rows, query
from tests.fixtures.servers import address_of
from tests.fixtures.services import RunService, Service
from tests.fixtures.waiting import wait_for

StartProxy = Callable[[str, int], FaultProxy]


class SchedulerStage:
    """A database, a broker with a queue, and schedulers for them."""

    def __init__(self, database: Database, rabbit: Broker, run_service: RunService) -> None:
        self.database = database
        self.rabbit = rabbit
        self.run_service = run_service
        self.connection = database.connect()
        self.queue = rabbit.declare_queue()
        self._ids: dict[str, int] = {}

    def start(self, *arguments: str, broker_url: str | None = None, **settings: object) -> Service:
        values = {
            "database_url": self.database.dsn,
            "broker_url": broker_url or self.rabbit.url,
            "log_format": "json",
            "log_level": "debug",
            **settings,
        }
        env = {f"OUTRIDER_{name.upper()}": str(value) for name, value in values.items()}
        return self.run_service("outrider.retry_scheduler", *arguments, env=env)

    def start_and_wait(self, **settings: Any) -> Service:
        service = self.start(**settings)
        service.wait_for_event("scheduler_active")
        return service

    def insert(self, count: int = 1, **columns: Any) -> list[int]:
        """Due rows for the queue."""
        ids = insert_rows(self.connection, count, **{"routing_key": self.queue, **columns})
        self._ids.update(query(self.connection, "SELECT event_id::text, id FROM outbox WHERE id >= %s", ids[0]))
        return ids

    def pending(self) -> int:
        return int(query(self.connection, "SELECT count(*) FROM outbox")[0])

    def wait_until_empty(self, deadline_seconds: float = 60.0) -> None:
        wait_for(lambda: self.pending() == 0, deadline_seconds=deadline_seconds, message="the outbox is not empty")

    def delivered(self) -> list[int]:
        """The rows of all messages in the queue, in its order. A consumer, because `get` is a round trip for each."""
        received: list[str] = []
        expected = self.rabbit.depth(self.queue)
        with self.rabbit.channel() as channel:
            channel.basic_consume(
                self.queue, no_ack=True, callback=lambda message: received.append(message.properties["message_id"])
            )
            while len(received) < expected:
                channel.connection.drain_events(timeout=10)
        return [self._ids[event_id] for event_id in received]


@pytest.fixture
def stage(database: Database, rabbit: Broker, run_service: RunService) -> Iterator[SchedulerStage]:
    stage = SchedulerStage(database, rabbit, run_service)
    yield stage
    stage.connection.close()


@pytest.fixture
def proxy(rabbit: Broker, fault_proxy: StartProxy) -> FaultProxy:
    """A proxy in front of the broker that can fail."""
    return fault_proxy(*address_of(rabbit.url))


# -- many schedulers --------------------------------------------------------------------------------------------------


def test_four_schedulers_deliver_each_of_20000_due_rows_once_and_each_key_in_order(stage: SchedulerStage) -> None:
    ids = stage.insert(15_000)
    for key in range(50):
        ids += stage.insert(100, ordering_key=f"k{key}")
    keys = dict(query(stage.connection, "SELECT id, ordering_key FROM outbox WHERE ordering_key IS NOT NULL"))
    schedulers = [stage.start(name=f"s{number}") for number in range(4)]
    stage.wait_until_empty(60)
    assert [scheduler.stop() for scheduler in schedulers] == [0, 0, 0, 0]
    delivered = stage.delivered()
    assert Counter(delivered) == Counter(ids)
    by_key: dict[str, list[int]] = defaultdict(list)
    for each in delivered:
        if each in keys:
            by_key[keys[each]].append(each)
    assert all(rows == sorted(rows) for rows in by_key.values())
    shares = [scheduler.events()[-1]["delivered"] for scheduler in schedulers]
    assert sum(shares) == 20_000
    assert query(stage.connection, "SELECT name FROM outbox_worker") == []


def test_rows_of_a_killed_scheduler_are_delivered_when_its_lease_ends(stage: SchedulerStage, proxy: FaultProxy) -> None:
    killed = stage.start_and_wait(broker_url=proxy.through(stage.rabbit.url), lease_seconds=4, send_timeout_seconds=3)
    proxy.blackhole("to_client")  # no confirm arrives: it is killed between send and settle
    ids = stage.insert(300)
    claimed = "SELECT count(*) FROM outbox WHERE claimed_by IS NOT NULL"
    wait_for(lambda: query(stage.connection, claimed)[0] >= 100, message="nothing is claimed")
    killed.kill()
    stage.start(lease_seconds=4, send_timeout_seconds=3)
    stage.wait_until_empty()
    assert set(stage.delivered()) == set(ids)


# -- outages ----------------------------------------------------------------------------------------------------------


def test_an_outage_spends_no_attempt_and_opens_the_breaker_until_a_probe_succeeds(
    stage: SchedulerStage, proxy: FaultProxy
) -> None:
    scheduler = stage.start_and_wait(
        broker_url=proxy.through(stage.rabbit.url), broker_outage_cooldown_seconds=1, archive=True
    )
    proxy.refuse()
    proxy.cut()
    ids = stage.insert(200)
    scheduler.wait_for_event("broker_outage", breaker="open")
    wait_for(
        lambda: sum(event["event"] == "broker_outage" for event in scheduler.events()) >= 4,
        message="no further probes are sent",
    )
    assert query(stage.connection, "SELECT DISTINCT attempts FROM outbox") == [0]
    proxy.heal()
    stage.wait_until_empty()
    scheduler.wait_for_event("breaker_closed")
    assert scheduler.stop() == 0
    assert set(stage.delivered()) == set(ids)
    assert query(stage.connection, "SELECT DISTINCT attempts FROM outbox_archive") == [0]
    assert query(stage.connection, "SELECT count(*) FROM outbox_dead_letter") == [0]


def test_messages_without_a_confirm_are_deferred_and_sent_again(stage: SchedulerStage, proxy: FaultProxy) -> None:
    ids = stage.insert(20)
    scheduler = stage.start_and_wait(
        broker_url=proxy.through(stage.rabbit.url),
        broker_outage_cooldown_seconds=0.5,
        send_timeout_seconds=1,
        archive=True,
    )
    stage.wait_until_empty()
    proxy.blackhole("to_client")
    ids += stage.insert(20)
    scheduler.wait_for_event("broker_outage")
    proxy.cut()
    proxy.heal()
    stage.wait_until_empty()
    assert set(stage.delivered()) == set(ids)
    assert query(stage.connection, "SELECT DISTINCT attempts FROM outbox_archive") == [0]


def test_a_scheduler_reconnects_to_the_database_and_continues(stage: SchedulerStage) -> None:
    scheduler = stage.start_and_wait()
    stage.connection.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = current_database() AND application_name LIKE 'retry-scheduler%'"
    )
    scheduler.wait_for_event("database_available")
    ids = stage.insert(10)
    stage.wait_until_empty()
    assert stage.delivered() == ids
    assert scheduler.stop() == 0


# -- failures ---------------------------------------------------------------------------------------------------------


def test_a_poison_row_is_buried_after_its_attempts_and_the_others_are_delivered(stage: SchedulerStage) -> None:
    (poison,) = stage.insert(routing_key="nowhere", context='{"request_id": "r-1"}')
    good = stage.insert(50)
    scheduler = stage.start_and_wait(backoff_seconds=0.3, max_attempts=3)
    scheduler.wait_for_event("failed", id=poison, attempts=1, request_id="r-1")
    good += stage.insert(50)
    scheduler.wait_for_event("buried", id=poison, reason="max attempts", attempts=3)
    stage.wait_until_empty()
    assert Counter(stage.delivered()) == Counter(good)
    (letter,) = query(stage.connection, "SELECT id, reason, attempts, last_error FROM outbox_dead_letter")
    assert letter[:3] == (poison, "max attempts", 3)
    assert "NoRoute" in letter[3]
    assert not [event for event in scheduler.events() if event["event"] == "broker_outage"]


def test_a_key_keeps_its_order_across_failures(stage: SchedulerStage) -> None:
    late = f"{stage.queue}-late"
    ids = stage.insert(150, ordering_key="k", routing_key=late)
    scheduler = stage.start_and_wait(backoff_seconds=0.5, max_attempts=100, max_backoff_seconds=0.5)
    scheduler.wait_for_event("failed", id=ids[0], attempts=2)
    assert {event["id"] for event in scheduler.events() if event["event"] == "failed"} == {ids[0]}
    stage.queue = stage.rabbit.declare_queue(late)
    stage.wait_until_empty()
    assert stage.delivered() == ids


def test_undecodable_and_expired_messages_are_buried_and_do_not_hold_up_their_key(stage: SchedulerStage) -> None:
    (undecodable,) = stage.insert(ordering_key="k", properties='{"priority": "high"}')
    (expired,) = stage.insert(ordering_key="k", expires_at="2020-01-01")
    good = stage.insert(3, ordering_key="k")
    scheduler = stage.start("--once")
    assert scheduler.wait() == 0
    assert stage.delivered() == good
    letters = query(stage.connection, "SELECT id, reason FROM outbox_dead_letter ORDER BY id")
    assert letters == [(undecodable, "undecodable"), (expired, "expired")]


# -- shutdown ---------------------------------------------------------------------------------------------------------


def test_sigterm_releases_unsent_rows_at_once_and_defers_those_without_a_confirm(
    stage: SchedulerStage, proxy: FaultProxy
) -> None:
    scheduler = stage.start_and_wait(
        broker_url=proxy.through(stage.rabbit.url), shutdown_timeout_seconds=20, lease_seconds=60
    )
    proxy.blackhole("to_client")
    first, *behind = stage.insert(10, ordering_key="k")
    claimed = "SELECT count(*) FROM outbox WHERE claimed_by IS NOT NULL"
    wait_for(lambda: query(stage.connection, claimed) == [10], message="the rows are not claimed")
    stage.rabbit.wait_for_depth(stage.queue, 1)  # only now the first is sent; earlier all would be released
    scheduler.signal(signal.SIGTERM)
    due = "SELECT id FROM outbox WHERE claimed_by IS NULL AND next_attempt_at <= clock_timestamp() ORDER BY id"
    wait_for(lambda: query(stage.connection, due) == behind, deadline_seconds=15, message="the rows are not released")
    assert scheduler.is_running  # it waits for the confirm of the first
    assert scheduler.wait() == 0
    waits = "SELECT claimed_by, attempts, next_attempt_at > clock_timestamp() FROM outbox WHERE id = %s"
    assert query(stage.connection, waits, first) == [(None, 0, True)]


# -- ways to run it ---------------------------------------------------------------------------------------------------


def test_once_drains_what_is_due_and_exits(stage: SchedulerStage) -> None:
    ids = stage.insert(300, ordering_key="k{n}") + stage.insert(250, ordering_key="hot")
    stage.insert(5, due_in="1 hour")
    scheduler = stage.start("--once")
    assert scheduler.wait() == 0
    assert Counter(stage.delivered()) == Counter(ids)
    assert stage.pending() == 5


def test_once_fails_when_the_broker_is_down_and_leaves_the_rows_alone(stage: SchedulerStage, proxy: FaultProxy) -> None:
    stage.insert(3)
    proxy.refuse()
    scheduler = stage.start("--once", broker_url=proxy.through(stage.rabbit.url))
    assert scheduler.wait() == 1
    (line,) = scheduler.output().strip().splitlines()
    assert line.startswith("retry-scheduler: error: ConnectionRefused")
    assert query(stage.connection, "SELECT DISTINCT attempts, claimed_by FROM outbox") == [(0, None)]


def test_an_error_at_start_is_one_line_and_an_exit_status(stage: SchedulerStage, rabbit: Broker) -> None:
    nowhere = stage.start(database_url="postgresql://postgres@127.0.0.1:1/nowhere?connect_timeout=2")
    no_tables = stage.start(database_url=stage.database.dsn, schema="elsewhere")
    too_short = stage.start(lease_seconds=1)
    assert (nowhere.wait(), no_tables.wait(), too_short.wait()) == (1, 1, 2)
    for service, words in ((nowhere, "PostgreSQL"), (no_tables, "outrider setup"), (too_short, "lease_seconds")):
        (line,) = service.output().strip().splitlines()
        assert line.startswith("retry-scheduler: error: ")
        assert words in line


def test_it_is_a_polling_outbox_without_a_relay(stage: SchedulerStage) -> None:
    stage.connection.execute(script("setup/handover_after.sql", schema="public", handover_after="0 seconds"))
    stage.start_and_wait()
    for number in range(3):
        stage.connection.execute(
            "INSERT INTO outbox (event_type, routing_key, payload) VALUES ('e', %s, %s)", [stage.queue, b"%d" % number]
        )
        wait_for(lambda: stage.pending() == 0, message="the message was not delivered")
    assert [each.body for each in stage.rabbit.take_what_is_there(stage.queue)] == [b"0", b"1", b"2"]


def test_it_wakes_when_the_next_row_falls_due_and_not_at_the_next_poll(stage: SchedulerStage) -> None:
    stage.start_and_wait(poll_seconds=60, archive=True)
    # The polls of an idle table become less frequent: 2.5 s after the start, then 5 s, then 10 s.
    stage.insert(due_in="3.5 seconds", owner="scheduler")
    stage.wait_until_empty(20)
    lateness = "SELECT extract(epoch FROM delivered_at - created_at)::float8 - 3.5 FROM outbox_archive"
    assert query(stage.connection, lateness)[0] < 1.0


def test_it_delivers_through_redis(database: Database, redis_broker: Broker, run_service: RunService) -> None:
    stage = SchedulerStage(database, redis_broker, run_service)
    ids = stage.insert(100) + stage.insert(20, ordering_key="k")
    scheduler = stage.start("--once")
    assert scheduler.wait() == 0
    assert len(redis_broker.take_what_is_there(stage.queue)) == len(ids)
    assert stage.pending() == 0
    stage.connection.close()


def test_metrics_readiness_and_status_are_served(stage: SchedulerStage, proxy: FaultProxy) -> None:
    stage.insert(3)
    stage.insert(routing_key="nowhere")
    scheduler = stage.start_and_wait(
        http_port=0, broker_url=proxy.through(stage.rabbit.url), broker_outage_cooldown_seconds=30
    )
    port = scheduler.wait_for_event("http_listening")["port"]

    def get(path: str) -> str:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
                return str(answer.read().decode())
        except urllib.error.HTTPError as error:
            return str(error.read().decode())

    wait_for(lambda: stage.pending() == 1, message="the good rows were not delivered")
    metrics = get("/metrics")
    assert f'outbox_messages_published_total{{destination="{stage.queue}",service="scheduler"}} 3.0' in metrics
    assert 'outbox_publish_failures_total{error="NoRoute",kind="failed",service="scheduler"} 1.0' in metrics
    for name in ("outbox_breaker_open", "outbox_claim_seconds_count", "outbox_settle_seconds_count"):
        assert f"\n{name} " in metrics
    wait_for(lambda: "\noutbox_pending " in get("/metrics"), message="the outbox is not counted")
    assert json.loads(get("/readyz"))["ready"]
    status = json.loads(get("/status"))
    assert (status["delivered"], status["failed"], status["breaker"]) == (3, 1, "closed")
    proxy.refuse()
    proxy.cut()
    wait_for(lambda: not json.loads(get("/readyz"))["ready"], message="it is still ready")
    assert "\noutbox_breaker_open 1.0" in get("/metrics")


def test_the_help_lists_the_flags(run_service: RunService) -> None:
    help_text = run_service("outrider.retry_scheduler", "--help")
    assert help_text.wait() == 0
    for flag in ("--once", "--lease-seconds", "--broker-outage-cooldown-seconds", "--archive-retention-seconds"):
        assert flag in help_text.output()
