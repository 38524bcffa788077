"""An operator's mistake is reported in one line, with a non-zero exit status and without a traceback."""

from __future__ import annotations

import socket
from collections.abc import Callable

import pytest

from outrider.embedded.postgres import Postgres
from tests.fixtures.broker import Broker
from tests.fixtures.database import create_outbox_database
from tests.fixtures.services import RunService, Service
from tests.fixtures.stage import Stage


def error_line(service: Service, status: int) -> str:
    assert service.wait() == status
    assert "Traceback" not in service.output()
    last = service.output().splitlines()[-1]
    assert last.startswith("cdc-relay: error: ")
    return last


@pytest.mark.parametrize(
    ("setting", "value", "status", "expected"),
    [
        ("database_url", "postgresql://nobody:hunter2@127.0.0.1:1/none", 1, "refused"),
        ("database_url", "postgresql://nobody:hunter2@no-such-host.invalid/none", 1, "no-such-host.invalid"),
        ("database_url", "hunter2 is no address", 2, "database_url"),
        ("broker_url", "amqp://guest:hunter2@no-such-host.invalid//", 1, "no-such-host.invalid"),
        ("broker_url", "pigeon://user:hunter2@roof", 2, "pigeon"),
        ("window_messages", "many", 2, "window_messages"),
        ("window_mesages", "10", 2, "did you mean window_messages?"),
        ("schema", "elsewhere", 1, "outrider setup"),
        ("publication", "elsewhere", 1, "outrider setup"),
        ("slot", "No Slot", 2, "slot"),
    ],
)
def test_a_wrong_setting_is_named(
    stage: Stage, rabbit: Broker, setting: str, value: str, status: int, expected: str
) -> None:
    relay = stage.run_service("outrider.cdc_relay", env=stage.environment(rabbit.url, **{setting: value}))
    assert expected in error_line(relay, status)
    assert "hunter2" not in relay.output()


def test_a_refused_login_at_the_broker_is_reported_without_the_password(stage: Stage, rabbit: Broker) -> None:
    relay = stage.run_service(
        "outrider.cdc_relay", env=stage.environment(rabbit.url.replace("guest:guest", "guest:hunter2"))
    )
    assert "ACCESS_REFUSED" in error_line(relay, 1)
    assert "hunter2" not in relay.output()


def test_wal_level_replica_is_reported(
    private_postgres: Callable[..., Postgres], run_service: RunService, rabbit: Broker
) -> None:
    server = private_postgres(settings={"wal_level": "replica"})
    stage = Stage(create_outbox_database(server.dsn()), run_service)
    stage.set_up(slot=False)
    relay = run_service("outrider.cdc_relay", env=stage.environment(rabbit.url))
    assert "wal_level" in error_line(relay, 1)
    stage.close()


def test_a_publication_of_more_than_inserts_is_reported(stage: Stage, rabbit: Broker) -> None:
    stage.connection.execute("ALTER PUBLICATION outbox SET (publish = 'insert, delete')")
    relay = stage.run_service("outrider.cdc_relay", env=stage.environment(rabbit.url))
    assert "must publish inserts and nothing else" in error_line(relay, 1)


def test_a_send_timeout_longer_than_the_hand_over_time_is_reported(stage: Stage, rabbit: Broker) -> None:
    relay = stage.run_service("outrider.cdc_relay", env=stage.environment(rabbit.url, send_timeout_seconds=30))
    assert "send_timeout_seconds" in error_line(relay, 1)


def test_a_missing_privilege_is_reported(stage: Stage, rabbit: Broker) -> None:
    stage.connection.execute(f"CREATE ROLE {stage.slot} LOGIN")
    url = stage.database.dsn.replace("postgres@", f"{stage.slot}@")
    relay = stage.run_service("outrider.cdc_relay", env={**stage.environment(rabbit.url), "OUTRIDER_DATABASE_URL": url})
    assert "permission denied" in error_line(relay, 1)
    stage.connection.execute(f"DROP ROLE {stage.slot}")


def test_a_port_in_use_is_reported(stage: Stage, rabbit: Broker) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        relay = stage.run_service("outrider.cdc_relay", env=stage.environment(rabbit.url, http_port=port))
        assert f"127.0.0.1:{port} is in use" in error_line(relay, 2)
