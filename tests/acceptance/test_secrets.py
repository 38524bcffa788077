"""
No output contains a password of the settings; and no part of Outrider unpickles a message (only a Celery worker may).
"""

from __future__ import annotations

import json
import pickle
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
import pytest
from click.testing import CliRunner

from outrider.cdc_relay.__main__ import command as relay_command
from outrider.cli import outrider as outrider_command
from outrider.embedded.process import free_port
from outrider.producer.celery import OutboxCelery, TaskOutbox
from outrider.retry_scheduler.__main__ import command as scheduler_command
from tests.fixtures.broker import Broker
from tests.fixtures.commands import run_outrider
from tests.fixtures.django import configure_django, django_connection
from tests.fixtures.proxy import FaultProxy
from tests.fixtures.servers import SharedRabbitMQ, address_of
from tests.fixtures.services import Service
from tests.fixtures.stage import Stage

SECRETS = {
    "database": "hush-database%40",
    "replication": "hush-replication",
    "broker": "hush-broker%2F",
    "sentry": "hush-sentry",
}
SECRET_PREFIX = "hush-"
"""Every secret begins with it, encoded or not. No output may contain it."""


def with_password(url: str, user: str, password: str) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=f"{user}:{password}@{parts.hostname}:{parts.port}").geturl()


@pytest.fixture
def broker_with_password(rabbitmq_server: SharedRabbitMQ, rabbit: Broker) -> Iterator[str]:
    """The URL of the shared broker for a user whose password is one of the secrets."""
    server = rabbitmq_server.embedded
    if server is None:
        pytest.skip("a user of its own needs the embedded RabbitMQ")
    user, any_name = f"{rabbit.prefix}-user", '<<".*">>'
    server.ctl(
        "eval",
        f'rabbit_auth_backend_internal:add_user(<<"{user}">>, <<"hush-broker/">>, <<"test">>), '
        f'rabbit_auth_backend_internal:set_permissions(<<"{user}">>, <<"/">>, {any_name}, {any_name}, {any_name}, '
        f'<<"test">>).',
    )
    yield with_password(rabbit.url, user, SECRETS["broker"])
    server.ctl("delete_user", user)


def fetch(port: int, path: str) -> str:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as response:
            return str(response.read().decode())
    except urllib.error.HTTPError as error:
        with error:
            return error.read().decode()


def test_no_password_is_in_logs_endpoints_errors_help_or_the_list_of_processes(
    stage: Stage, rabbit: Broker, broker_with_password: str, fault_proxy: Callable[[str, int], FaultProxy]
) -> None:
    queue = rabbit.declare_queue()
    database, broker = fault_proxy(*address_of(stage.database.dsn)), fault_proxy(*address_of(rabbit.url))
    user = urlsplit(stage.database.dsn).username or "postgres"
    address = database.through(stage.database.dsn)
    environment = stage.environment(
        broker.through(broker_with_password),
        database_url=with_password(address, user, SECRETS["database"]),
        replication_url=with_password(address, user, SECRETS["replication"]),
        sentry_dsn=f"https://{SECRETS['sentry']}@127.0.0.1:1/1",
        connect_timeout_seconds=2,
        hold_seconds=0,
        broker_outage_cooldown_seconds=0.2,
    )
    ports = {"outrider.cdc_relay": free_port(), "outrider.retry_scheduler": free_port()}
    services = {
        module: stage.run_service(module, env={**environment, "OUTRIDER_HTTP_PORT": str(port)})
        for module, port in ports.items()
    }
    services["outrider.cdc_relay"].wait_for_line("broker_connected")
    services["outrider.retry_scheduler"].wait_for_line("scheduler_active")
    said = [Path(f"/proc/{service.pid}/cmdline").read_text() for service in services.values()]

    def ask() -> None:
        for port in ports.values():
            said.extend(fetch(port, path) for path in ("/status", "/metrics", "/readyz", "/healthz"))

    ask()
    stage.insert("nowhere")
    stage.insert(queue)
    stage.insert(queue, owner="scheduler", next_attempt_at="2020-01-01Z")
    rabbit.wait_for_depth(queue, 2)
    said += doctor_and_status(environment)

    # Both servers go away: every kind of connection fails, and says why.
    for proxy in (broker, database):
        proxy.refuse()
        proxy.cut()
    services["outrider.cdc_relay"].wait_for_event("session_lost")
    services["outrider.retry_scheduler"].wait_for_event("database_lost")
    ask()
    said += doctor_and_status(environment)
    for proxy in (broker, database):
        proxy.heal()
    stage.insert(queue, 5)
    rabbit.wait_for_depth(queue, 7)
    for service in services.values():
        assert service.stop() == 0
        said.append(service.output())

    said += [*wrong_passwords(stage, environment), *help_of_everything(environment)]
    assert len(said) > 30
    for text in said:
        assert text
        assert SECRET_PREFIX not in text


def doctor_and_status(environment: dict[str, str]) -> list[str]:
    """Run in this process: a new process takes a second to start."""
    return [
        output_of(outrider_command, environment, *arguments)
        for arguments in (["doctor"], ["status", "--json"], ["setup", "--dry-run"], ["pending", "list"])
    ]


def output_of(command: click.Command, environment: dict[str, str], *arguments: str) -> str:
    result = CliRunner().invoke(command, arguments, env=environment)
    return f"{result.output}{result.exception or ''}"


def wrong_passwords(stage: Stage, environment: dict[str, str]) -> list[str]:
    """Output of services with a refused login, and with malformed URLs."""
    wrong: dict[str, str] = {
        "OUTRIDER_BROKER_URL": environment["OUTRIDER_BROKER_URL"].replace(SECRETS["broker"], "hush-but-wrong"),
        "OUTRIDER_DATABASE_URL": f"postgresql://nobody:{SECRETS['database']}@[::1/x",
        "OUTRIDER_SENTRY_DSN": f"ftp:{SECRETS['sentry']}",
        "OUTRIDER_REPLICATION_URL": f"host=127.0.0.1 port=1 password={SECRETS['replication']}",
    }
    services: list[Service] = [
        # Each has its own slot: a standby would wait for ever.
        stage.run_service(
            "outrider.cdc_relay", env={**environment, "OUTRIDER_SLOT": f"{stage.slot}_{number}", variable: value}
        )
        for number, (variable, value) in enumerate(wrong.items())
    ]
    malformed = {**environment, "OUTRIDER_BROKER_URL": f"amqp://user:{SECRETS['broker']}@host:port/x"}
    services.append(stage.run_service("outrider.retry_scheduler", env=malformed))
    assert all(service.wait() in (1, 2) for service in services)
    return [service.output() for service in services]


def help_of_everything(environment: dict[str, str]) -> list[str]:
    """The help texts while the secrets are set: help shows defaults, but not these values."""
    names = outrider_command.list_commands(click.Context(outrider_command))
    return [
        *(
            output_of(command, environment, "--help")
            for command in (outrider_command, relay_command, scheduler_command)
        ),
        *(output_of(outrider_command, environment, name, "--help") for name in names),
    ]


# -- pickles -----------------------------------------------------------------------------------------------------------


class TouchesFileWhenUnpickled:
    def __init__(self, touched_file: Path) -> None:
        self.touched_file = touched_file

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.touched_file,)


def show_bytes(event_type: str, payload: Any, headers: Any) -> str:
    """A redactor: it receives the bytes of the row, not an unpickled object."""
    assert isinstance(payload, bytes)
    return f"{len(payload)} bytes of {event_type}"


def test_a_pickle_passes_capture_broker_commands_and_admin_without_being_unpickled(
    stage: Stage, rabbit: Broker, tmp_path: Path
) -> None:
    touched_file = tmp_path / "touched_file"
    queue = rabbit.declare_queue()
    outbox = TaskOutbox(outside_transaction="raise")
    app = OutboxCelery("shop", outbox=outbox, broker=rabbit.url, set_as_current=False)
    explode = app.task(name="shop.explode", shared=False)(show_bytes)
    with stage.connection.transaction(), outbox.session(stage.connection):
        explode.apply_async((TouchesFileWhenUnpickled(touched_file), 2, 3), serializer="pickle", queue=queue)
        stage.connection.execute(
            "INSERT INTO outbox (event_type, routing_key, payload, content_type, content_encoding, headers) "
            "SELECT event_type, 'nowhere', payload, content_type, content_encoding, headers FROM outbox"
        )
    ids = [row["id"] for row in stage.rows()]

    # One is delivered, the other buried.
    environment = stage.environment(rabbit.url, max_attempts=1)
    relay = stage.run_service("outrider.cdc_relay", env=environment)
    (message,) = rabbit.get_all(queue, 1)
    stage.wait_until_empty()
    assert relay.stop() == 0
    assert message.content_type == "application/x-python-serialize"
    (dead,) = stage.rows("outbox_dead_letter")
    assert dead["id"] == ids[1]
    assert dead["payload"] == message.body

    settings = {"OUTRIDER_DATABASE_URL": stage.database.dsn}
    redactor = f"{__name__}.{show_bytes.__name__}"
    shown = [
        run_outrider("dead", "show", str(dead["id"]), *options, env=settings)
        for options in (["--payload", "--json"], ["--redactor", redactor])
    ]
    assert [result.returncode for result in shown] == [0, 0], shown
    assert json.loads(shown[0].stdout)["payload_base64"]
    assert f"{len(message.body)} bytes of application/x-python-serialize" in shown[1].stdout
    assert "shop.explode" in admin_page(stage, f"/admin/outrider/deadletter/{dead['id']}/change/")
    assert run_outrider("dead", "replay", str(dead["id"]), env=settings).returncode == 0

    assert not touched_file.exists()
    pickle.loads(message.body)  # unpickling does touch the file
    assert touched_file.exists()


def admin_page(stage: Stage, path: str) -> str:
    configure_django()
    from django.contrib.auth.models import User
    from django.core.management import call_command
    from django.test import Client

    with django_connection(stage.database.dsn):
        call_command("migrate", verbosity=0)
        client = Client()
        client.force_login(User.objects.create_superuser("root"))
        response = client.get(path)
        assert response.status_code == 200
        return response.content.decode()
