"""`outrider doctor`, `setup` and the services on unsupported servers: too old, a standby, a broker without confirms."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from outrider.embedded.postgres import Postgres
from tests.fixtures.broker import Broker
from tests.fixtures.commands import run_outrider
from tests.fixtures.database import Database, create_outbox_database
from tests.fixtures.postgres_versions import TOO_OLD, postgres_binaries
from tests.fixtures.proxy import FaultProxy
from tests.fixtures.servers import address_of
from tests.fixtures.services import RunService
from tests.fixtures.stage import Stage
from tests.fixtures.standby import start_standby

NO_BROKER = "amqp://guest@127.0.0.1:1//"


def environment(stage: Stage) -> dict[str, str]:
    return {"OUTRIDER_DATABASE_URL": stage.database.dsn, "OUTRIDER_SLOT": stage.slot}


def failures_of_doctor(env: dict[str, str]) -> list[str]:
    """The lines of failed checks."""
    run = run_outrider("doctor", env=env)
    assert (run.returncode, run.stderr) == (1, "")
    return [line.removeprefix("failed").strip() for line in run.stdout.splitlines() if line.startswith("failed")]


def error_of_command(command: str, env: dict[str, str]) -> str:
    run = run_outrider(command, env=env)
    assert (run.returncode, run.stdout) == (1, "")
    return run.stderr


def error_of_service(module: str, stage: Stage) -> str:
    service = stage.run_service(module, env=stage.environment(NO_BROKER))
    assert service.wait() == 1
    return service.output()


@pytest.fixture
def old_stage(private_postgres: Callable[..., Postgres], run_service: RunService) -> Iterator[Stage]:
    """A complete outbox on a server that is too old."""
    server = private_postgres(binaries=postgres_binaries(TOO_OLD))
    stage = Stage(create_outbox_database(server.dsn()), run_service)
    stage.set_up()
    yield stage
    stage.close()


def test_a_server_that_is_too_old_is_refused_by_all_commands_with_what_to_do(old_stage: Stage) -> None:
    (failure,) = failures_of_doctor(environment(old_stage))
    assert failure.startswith("server: PostgreSQL 13.")
    assert failure.endswith(" is too old; upgrade to 14 or newer")
    too_old = "error: PostgreSQL 13 is too old: 14 or newer is needed\n"
    assert error_of_command("setup", environment(old_stage)) == f"outrider: {too_old}"
    assert error_of_service("outrider.cdc_relay", old_stage) == f"cdc-relay: {too_old}"
    assert error_of_service("outrider.retry_scheduler", old_stage) == f"retry-scheduler: {too_old}"


@pytest.mark.parametrize("version", [14, 18])
def test_a_standby_is_refused_by_all_commands_and_not_changed(
    private_postgres: Callable[..., Postgres], run_service: RunService, version: int
) -> None:
    """From PostgreSQL 16 on the relay could create a slot on a standby, which would keep WAL there for ever."""
    binaries = postgres_binaries(version)
    primary = private_postgres(binaries=binaries)
    database = create_outbox_database(primary.dsn())
    stage = Stage(database, run_service)
    stage.set_up()
    stage.close()
    standby = start_standby(private_postgres, primary, binaries=binaries)
    replica = Stage(Database(database.name, standby.dsn()), run_service, slot=stage.slot)

    (server,) = failures_of_doctor(environment(replica))
    assert server.startswith(f"server: PostgreSQL {version}.")
    assert server.endswith(" is a standby; point database_url at the primary")
    for command, error in (
        ("setup", "this server is a standby: run set-up on the primary"),
        ("teardown", "this server is a standby: run teardown on the primary"),
    ):
        assert error_of_command(command, environment(replica)) == f"outrider: error: {error}\n"
    standby_error = "error: this server is a standby: point database_url at the primary\n"
    assert error_of_service("outrider.cdc_relay", replica) == f"cdc-relay: {standby_error}"
    assert error_of_service("outrider.retry_scheduler", replica) == f"retry-scheduler: {standby_error}"
    assert replica.connection.execute("SELECT slot_name FROM pg_replication_slots").fetchall() == []
    status = run_outrider("status", "--json", env=environment(replica))
    assert json.loads(status.stdout)["slot"] is None
    replica.close()


class WithoutConfirms(FaultProxy):
    """In front of RabbitMQ: removes publisher confirms from the capabilities of the server."""

    async def _forward(self, data: bytes, writer: asyncio.StreamWriter, way: Any) -> None:
        offered = b"\x12publisher_confirmst"  # a short string, and the type of the value: a boolean
        await super()._forward(data.replace(offered + b"\x01", offered + b"\x00"), writer, way)


def test_a_broker_without_publisher_confirms_fails(stage: Stage, rabbit: Broker) -> None:
    with WithoutConfirms(*address_of(rabbit.url)) as proxy:
        (failure,) = failures_of_doctor({**environment(stage), "OUTRIDER_BROKER_URL": proxy.through(rabbit.url)})
    assert failure == "confirms: this broker has no publisher confirms; the services need them: use RabbitMQ"
