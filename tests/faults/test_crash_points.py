"""
A service is killed between two steps, at every crash point: the next process delivers every committed message in order.

Each case has the largest number of duplicates that a kill at this point can cause. At every point a stronger rule holds
too: a message is delivered twice only if its row was still in the table when the process was killed.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest

from outrider.runtime.crash_points import POINTS, VARIABLE
from tests.fixtures.broker import Broker
from tests.fixtures.proxy import FaultProxy
from tests.fixtures.servers import address_of
from tests.fixtures.services import RunService, Service
from tests.fixtures.stage import Stage
from tests.fixtures.waiting import wait_for

KEYS, ROWS_PER_KEY, UNORDERED = ("a", "b"), 3, 6
MESSAGES = len(KEYS) * ROWS_PER_KEY + UNORDERED
AT_ONCE = len(KEYS) + UNORDERED
"""Messages in flight at a time: one of each ordering key, and all without a key."""

UNREACHABLE_BROKER = "amqp://127.0.0.1:1//"


@dataclass
class Scene:
    """One transaction of ordered and unordered messages, and a service that is killed while it delivers them."""

    stage: Stage
    broker: Broker
    proxy: FaultProxy
    point: str
    queue: str = ""
    committed: dict[str | None, list[str]] = field(default_factory=dict)

    def commit(self, owner: str = "relay") -> None:
        self.queue = self.queue or self.broker.declare_queue()
        # Owned by the relay for an hour: the scheduler must not deliver what the relay forgets during the test.
        columns = {"owner": owner, "next_attempt_at": datetime.now(UTC) + timedelta(hours=1)}
        with self.stage.connection.transaction():
            for key, count in [*((key, ROWS_PER_KEY) for key in KEYS), (None, UNORDERED)]:
                self.committed[key] = self.stage.insert(self.queue, count, ordering_key=key, **columns)

    def start_relay(self, broker_url: str | None = None, *, wait: bool = True, **settings: object) -> Service:
        settings = {"status_interval_seconds": 0.05, **settings}
        return self._start("outrider.cdc_relay", broker_url, "broker_connected" if wait else None, settings)

    def start_scheduler(self, broker_url: str | None = None, **settings: object) -> Service:
        return self._start("outrider.retry_scheduler", broker_url, "scheduler_active", settings)

    def _start(self, module: str, broker_url: str | None, line: str | None, settings: dict[str, object]) -> Service:
        environment = self.stage.environment(broker_url or self.broker.url, **settings)
        service = self.stage.run_service(module, env={**environment, VARIABLE: self.point})
        if line is not None:
            service.wait_for_line(line)
        return service

    def make_scheduler_rows_due(self) -> None:
        """End the leases and backoffs of the scheduler's rows."""
        self.stage.connection.execute(
            "UPDATE outbox SET next_attempt_at = clock_timestamp() WHERE owner = 'scheduler' "
            "AND next_attempt_at < 'infinity'"
        )


def working_relay(scene: Scene) -> Service:
    victim = scene.start_relay()
    scene.commit()
    return victim


def starting_relay(scene: Scene) -> Service:
    scene.commit()
    return scene.start_relay(wait=False)


def relay_without_broker(scene: Scene) -> Service:
    scene.commit()
    return scene.start_relay(UNREACHABLE_BROKER, wait=False)


def relay_without_route(scene: Scene) -> Service:
    scene.queue = f"{scene.broker.prefix}-later"
    victim = scene.start_relay()
    scene.commit()
    victim.wait()
    scene.broker.declare_queue(scene.queue)
    return victim


def stopping_relay_without_confirms(scene: Scene) -> Service:
    victim = scene.start_relay(scene.proxy.through(scene.broker.url), shutdown_timeout_seconds=0.2)
    scene.proxy.blackhole("to_client")
    scene.commit()
    scene.broker.wait_for_depth(scene.queue, AT_ONCE)
    victim.signal(signal.SIGTERM)
    return victim


def working_scheduler(scene: Scene) -> Service:
    scene.commit(owner="scheduler")
    scene.make_scheduler_rows_due()
    return scene.start_scheduler()


def stopping_scheduler_without_confirms(scene: Scene) -> Service:
    victim = scene.start_scheduler(scene.proxy.through(scene.broker.url))
    scene.proxy.blackhole("to_client")
    scene.commit(owner="scheduler")
    scene.make_scheduler_rows_due()
    scene.broker.wait_for_depth(scene.queue, AT_ONCE)
    victim.signal(signal.SIGTERM)
    return victim


CASES: list[tuple[str, Callable[[Scene], Service], int]] = [
    ("relay.after_acquire", starting_relay, 0),
    ("relay.after_read", working_relay, 0),
    ("relay.after_publish", working_relay, AT_ONCE),
    ("relay.after_confirm", working_relay, AT_ONCE),
    ("relay.after_confirm:3", working_relay, MESSAGES),  # the third message of each key is in flight by then
    ("relay.before_settle", working_relay, MESSAGES),  # other messages are published until the settler is killed
    ("relay.after_settle_delivered", working_relay, MESSAGES - 1),
    ("relay.before_feedback", working_relay, MESSAGES - 1),
    ("relay.after_settle_undelivered", relay_without_route, 0),
    ("relay.shedding", relay_without_broker, 0),
    ("relay.draining", stopping_relay_without_confirms, AT_ONCE),
    ("relay.handing_over", stopping_relay_without_confirms, AT_ONCE),
    ("scheduler.after_claim", working_scheduler, 0),
    ("scheduler.after_publish", working_scheduler, AT_ONCE),
    ("scheduler.after_confirm", working_scheduler, AT_ONCE),
    ("scheduler.before_settle", working_scheduler, MESSAGES),
    ("scheduler.after_settle", working_scheduler, MESSAGES - 1),
    ("scheduler.after_release", stopping_scheduler_without_confirms, AT_ONCE),
]


def test_every_crash_point_has_its_case() -> None:
    assert {point.partition(":")[0] for point, _, _ in CASES} == set(POINTS)


@pytest.mark.parametrize(("point", "crash", "most_duplicates"), CASES, ids=[point for point, _, _ in CASES])
def test_every_committed_message_is_delivered_in_order_after_a_crash(
    point: str,
    crash: Callable[[Scene], Service],
    most_duplicates: int,
    stage: Stage,
    rabbit: Broker,
    fault_proxy: Callable[[str, int], FaultProxy],
) -> None:
    scene = Scene(stage, rabbit, fault_proxy(*address_of(rabbit.url)), point)
    victim = crash(scene)
    assert victim.wait() == -signal.SIGKILL
    victim.wait_for_event("crash_point", point=point.partition(":")[0])
    remaining = {row["event_id"] for row in stage.rows()}

    if point.startswith("relay."):
        deliver_by_another_relay(stage, rabbit)
    scene.make_scheduler_rows_due()
    deliver_by_another_scheduler(stage, rabbit)

    arrived = [message.message_id or "" for message in rabbit.take_what_is_there(scene.queue)]
    first_arrivals = list(dict.fromkeys(arrived))
    duplicates = Counter(arrived) - Counter(first_arrivals)
    assert sorted(first_arrivals) == sorted(event_id for ids in scene.committed.values() for event_id in ids)
    for key in KEYS:
        assert [event_id for event_id in first_arrivals if event_id in scene.committed[key]] == scene.committed[key]
    assert set(duplicates) <= remaining
    assert duplicates.total() <= most_duplicates
    assert stage.rows("outbox_dead_letter") == []


def deliver_by_another_relay(stage: Stage, broker: Broker) -> None:
    """Run a relay until the table has only rows of the scheduler."""
    relay = stage.start_relay(broker.url, status_interval_seconds=0.1)
    wait_for(
        lambda: not [row for row in stage.rows() if row["owner"] == "relay"],
        message="rows of the relay remain",
    )
    stage.wait_until_confirmed()
    assert relay.is_running


def deliver_by_another_scheduler(stage: Stage, broker: Broker) -> None:
    if stage.count():
        assert stage.run_service("outrider.retry_scheduler", "--once", env=stage.environment(broker.url)).wait() == 0
    assert stage.rows() == []


def test_a_crash_point_that_does_not_exist_is_an_error_at_start(run_service: RunService) -> None:
    settings = {"OUTRIDER_DATABASE_URL": "postgresql://127.0.0.1:1/x", "OUTRIDER_BROKER_URL": UNREACHABLE_BROKER}
    services = [
        run_service(module, env={**settings, VARIABLE: "relay.after_confrim"})
        for module in ("outrider.cdc_relay", "outrider.retry_scheduler")
    ]
    for service in services:
        assert service.wait() == 2
        assert service.output().endswith(
            "there is no crash point 'relay.after_confrim' (did you mean relay.after_confirm?)\n"
        )
        assert len(service.output().splitlines()) == 1
