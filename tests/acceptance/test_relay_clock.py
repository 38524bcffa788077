"""The clock of the database is set while the relay runs."""

from __future__ import annotations

import tempfile
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from outrider.embedded.postgres import Postgres
from outrider.embedded.process import free_port
from tests.fixtures.broker import Broker
from tests.fixtures.commands import run_outrider
from tests.fixtures.database import create_outbox_database
from tests.fixtures.faketime import SettableClock
from tests.fixtures.services import RunService
from tests.fixtures.stage import Stage
from tests.fixtures.waiting import wait_for


@pytest.fixture
def clock() -> Iterator[SettableClock]:
    with tempfile.TemporaryDirectory() as directory:  # which the user of the server may read
        Path(directory).chmod(0o755)
        yield SettableClock(Path(directory))


@pytest.fixture
def shifted_stage(
    private_postgres: Callable[..., Postgres],
    run_service: RunService,
    clock: SettableClock,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Stage]:
    """On a server with a settable clock."""
    with monkeypatch.context() as environment:
        for name, value in clock.environment.items():
            environment.setenv(name, value)
        server = private_postgres()
    stage = Stage(create_outbox_database(server.dsn()), run_service)
    stage.set_up()
    yield stage
    stage.close()


@pytest.mark.parametrize(("seconds", "direction"), [(-60, "back by 60.0 s"), (50, "forward by 50.0 s")])
def test_the_relay_follows_a_clock_that_is_set_and_says_so(
    shifted_stage: Stage, rabbit: Broker, clock: SettableClock, seconds: int, direction: str
) -> None:
    stage, queue, port = shifted_stage, rabbit.declare_queue(), free_port()
    relay = stage.start_relay(rabbit.url, http_port=port)
    stage.insert(queue)
    stage.wait_until_empty()
    clock.set(seconds)
    stage.insert(queue, 3)
    assert len(rabbit.get_all(queue, 4, 10)) == 4  # long before their hand-over
    stage.wait_until_empty()
    assert relay.wait_for_event("clock_jumped")["reason"] == f"the database's clock was set {direction}"
    metrics = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read().decode()
    assert "outbox_clock_jumps_total 1.0" in metrics
    assert "outbox_messages_late_total 0.0" in metrics
    doctor = run_outrider("doctor", env=stage.environment(rabbit.url))
    (found,) = [line for line in doctor.stdout.splitlines() if "clock of the database: " in line]
    assert found.startswith("warning" if seconds < 0 else "ok")
    assert ("in the future: the clock was set back" in found) is (seconds < 0)


def test_many_late_rows_in_a_row_are_counted_and_a_warning(stage: Stage, rabbit: Broker) -> None:
    queue, port = rabbit.declare_queue(), free_port()
    relay = stage.start_relay(rabbit.url, http_port=port)
    relay.wait_for_event("caught_up")
    stage.insert(queue, 150, next_attempt_at="2000-01-01")
    warning = relay.wait_for_event("rows_too_late")
    assert warning["level"] == "warning"
    assert "--handover-after" in warning["hint"]

    def counted() -> bool:
        metrics = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read().decode()
        return "outbox_messages_late_total 150.0" in metrics

    wait_for(counted)
    assert rabbit.depth(queue) == 0
