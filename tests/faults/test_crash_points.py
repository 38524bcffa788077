"""
A service dies between two of its steps, whichever two: what was committed is delivered, in order, by the next one.

Each crash point has its case, with the most duplicates that dying there can cause. At every point the stronger rule
holds too: a message comes twice only if its row was still in the table when the process died.
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
"""In flight together: of an ordered key one message at a time."""

NOBODY = "amqp://127.0.0.1:1//"


@dataclass
class Scene:
    """One transaction of ordered and unordered messages, and a service that is to die over it."""

    stage: Stage
    broker: Broker
    proxy: FaultProxy
    point: str
    queue: str = ""
    committed: dict[str | None, list[str]] = field(default_factory=dict)

    def commit(self, owner: str = "relay") -> None:
        self.queue = self.queue or self.broker.declare_queue()
        # The relay's for long: what it forgets nobody else picks up, within the time of a test.
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

    def time_passes(self) -> None:
        """Leases and backoffs of the scheduler's rows run out."""
        self.stage.connection.execute(
            "UPDATE outbox SET next_attempt_at = clock_timestamp() WHERE owner = 'scheduler' "
            "AND next_attempt_at < 'infinity'"
        )


def relay_at_work(scene: Scene) -> Service:
    victim = scene.start_relay()
    scene.commit()
    return victim


def relay_starting(scene: Scene) -> Service:
    scene.commit()
    return scene.start_relay(wait=False)


def relay_without_a_broker(scene: Scene) -> Service:
    scene.commit()
    return scene.start_relay(NOBODY, wait=False)


def relay_without_a_route(scene: Scene) -> Service:
    scene.queue = f"{scene.broker.prefix}-later"
    victim = scene.start_relay()
    scene.commit()
    victim.wait()
    scene.broker.declare_queue(scene.queue)
    return victim


def relay_told_to_stop_without_answers(scene: Scene) -> Service:
    victim = scene.start_relay(scene.proxy.through(scene.broker.url), shutdown_timeout_seconds=0.2)
    scene.proxy.blackhole("to_client")
    scene.commit()
    scene.broker.wait_for_depth(scene.queue, AT_ONCE)
    victim.signal(signal.SIGTERM)
    return victim


def scheduler_at_work(scene: Scene) -> Service:
    scene.commit(owner="scheduler")
    scene.time_passes()
    return scene.start_scheduler()


def scheduler_told_to_stop_without_answers(scene: Scene) -> Service:
    victim = scene.start_scheduler(scene.proxy.through(scene.broker.url))
    scene.proxy.blackhole("to_client")
    scene.commit(owner="scheduler")
    scene.time_passes()
    scene.broker.wait_for_depth(scene.queue, AT_ONCE)
    victim.signal(signal.SIGTERM)
    return victim


CASES: list[tuple[str, Callable[[Scene], Service], int]] = [
    ("relay.after_acquire", relay_starting, 0),
    ("relay.after_read", relay_at_work, 0),
    ("relay.after_publish", relay_at_work, AT_ONCE),
    ("relay.after_confirm", relay_at_work, AT_ONCE),
    ("relay.after_confirm:3", relay_at_work, MESSAGES),  # each key is on its third message by then
    ("relay.before_settle", relay_at_work, MESSAGES),  # while the settler dies, keys go on
    ("relay.after_settle", relay_at_work, MESSAGES - 1),
    ("relay.before_feedback", relay_at_work, MESSAGES - 1),
    ("relay.after_leave_behind", relay_without_a_route, 0),
    ("relay.shedding", relay_without_a_broker, 0),
    ("relay.draining", relay_told_to_stop_without_answers, AT_ONCE),
    ("relay.handing_over", relay_told_to_stop_without_answers, AT_ONCE),
    ("scheduler.after_claim", scheduler_at_work, 0),
    ("scheduler.after_publish", scheduler_at_work, AT_ONCE),
    ("scheduler.after_confirm", scheduler_at_work, AT_ONCE),
    ("scheduler.before_settle", scheduler_at_work, MESSAGES),
    ("scheduler.after_settle", scheduler_at_work, MESSAGES - 1),
    ("scheduler.after_release", scheduler_told_to_stop_without_answers, AT_ONCE),
]


def test_every_crash_point_has_its_case() -> None:
    assert {point.partition(":")[0] for point, _, _ in CASES} == set(POINTS)


@pytest.mark.parametrize(("point", "act", "most_duplicates"), CASES, ids=[point for point, _, _ in CASES])
def test_what_was_committed_is_delivered_in_order_though_the_service_died(
    point: str,
    act: Callable[[Scene], Service],
    most_duplicates: int,
    stage: Stage,
    rabbit: Broker,
    fault_proxy: Callable[[str, int], FaultProxy],
) -> None:
    scene = Scene(stage, rabbit, fault_proxy(*address_of(rabbit.url)), point)
    victim = act(scene)
    assert victim.wait() == -signal.SIGKILL
    victim.wait_for_event("crash_point", point=point.partition(":")[0])
    left = {row["event_id"] for row in stage.rows()}

    if point.startswith("relay."):
        deliver_by_another_relay(stage, rabbit)
    scene.time_passes()
    deliver_by_another_scheduler(stage, rabbit)

    arrived = [message.message_id or "" for message in rabbit.take_what_is_there(scene.queue)]
    first_arrivals = list(dict.fromkeys(arrived))
    duplicates = Counter(arrived) - Counter(first_arrivals)
    assert sorted(first_arrivals) == sorted(event_id for ids in scene.committed.values() for event_id in ids)
    for key in KEYS:
        assert [event_id for event_id in first_arrivals if event_id in scene.committed[key]] == scene.committed[key]
    assert set(duplicates) <= left
    assert duplicates.total() <= most_duplicates
    assert stage.rows("outbox_dead_letter") == []


def deliver_by_another_relay(stage: Stage, broker: Broker) -> None:
    """Until nothing is left but what is the scheduler's."""
    relay = stage.start_relay(broker.url, status_interval_seconds=0.1)
    wait_for(
        lambda: not [row for row in stage.rows() if row["owner"] == "relay"],
        message="rows of the relay are left",
    )
    stage.wait_until_confirmed()
    assert relay.is_running


def deliver_by_another_scheduler(stage: Stage, broker: Broker) -> None:
    if stage.count():
        assert stage.run_service("outrider.retry_scheduler", "--once", env=stage.environment(broker.url)).wait() == 0
    assert stage.rows() == []


def test_a_crash_point_that_does_not_exist_is_an_error_at_start(run_service: RunService) -> None:
    settings = {"OUTRIDER_DATABASE_URL": "postgresql://127.0.0.1:1/x", "OUTRIDER_BROKER_URL": NOBODY}
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
