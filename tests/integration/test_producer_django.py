"""The Django app: migrations, models, checks and the signal of a publish."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from outrider import Event, EventStreams, Outbox, OutsideTransactionWarning
from outrider.storage.sql_files import migrations, script
from tests.fixtures.database import Database, create_database, drop_database
from tests.fixtures.django import configure_django, django_connection
from tests.integration.test_schema import describe

configure_django()

from django.core.management import call_command  # noqa: E402
from django.db import connections, transaction  # noqa: E402
from django.test.utils import override_settings  # noqa: E402

from outrider.producer.django.checks import check_settings  # noqa: E402
from outrider.producer.django.database_checks import check_database  # noqa: E402
from outrider.producer.django.django_outbox import DjangoOutbox, publish, publish_many  # noqa: E402
from outrider.producer.django.models import DeadLetter, OutboxMessage, StoredEvent  # noqa: E402
from outrider.producer.django.signals import outbox_message_created  # noqa: E402


@pytest.fixture
def empty(database: Database) -> Iterator[Database]:
    fresh = create_database(database.server_url)
    yield fresh
    drop_database(fresh)


@pytest.fixture
def in_django(database: Database) -> Iterator[Any]:
    with django_connection(database.dsn) as connection:
        yield connection


def identities(found: list[Any]) -> list[str]:
    return [message.id for message in found]


def without_password(event_type: str, payload: Any, headers: Any) -> Any:
    return {**payload, "password": "***"}


def test_migrate_creates_the_tables_of_schema_sql_and_its_reverse_drops_them(
    database: Database, empty: Database
) -> None:
    with django_connection(empty.dsn):
        call_command("migrate", "outrider", verbosity=0)
        with database.connect() as ours, empty.connect() as theirs:
            expected, found = describe(ours, "public"), describe(theirs, "public")
        for part in found:
            assert [row for row in found[part] if "django_" not in str(row)] == expected[part], part
        call_command("migrate", "outrider", "zero", verbosity=0)
        assert connections["default"].introspection.table_names() == ["django_migrations"]


def test_every_migration_of_sql_has_one_of_djangos() -> None:
    import outrider.producer.django.migrations as package

    numbers = sorted(int(file.name[:4]) for file in Path(package.__path__[0]).glob("[0-9]*.py"))
    assert numbers == [migration.version for migration in migrations()]


def test_makemigrations_finds_no_changes(in_django: Any) -> None:
    call_command("makemigrations", "outrider", check=True, dry_run=True, verbosity=0)


def test_migrate_skips_existing_tables_and_other_databases(database: Database, empty: Database) -> None:
    with django_connection(database.dsn), django_connection(empty.dsn, "other"):
        call_command("migrate", "outrider", verbosity=0)
        call_command("migrate", "outrider", database="other", verbosity=0)
        assert "outbox" not in connections["other"].introspection.table_names()


def test_a_publish_is_rolled_back_with_its_transaction_or_savepoint(in_django: Any) -> None:
    class Undo(Exception):
        pass

    with transaction.atomic():
        receipt = publish("order.placed", {"order": 42}, aggregate=("order", 42))
        with pytest.raises(Undo), transaction.atomic():  # noqa: PT012
            publish("undone", {})
            raise Undo
        publish_many([Event(event_type="order.paid", payload={}), {"event_type": "order.sent", "payload": {}}])
    assert receipt.new
    assert [message.event_type for message in OutboxMessage.objects.order_by("id")] == [
        "order.placed",
        "order.paid",
        "order.sent",
    ]
    with pytest.warns(OutsideTransactionWarning):
        publish("outside", {})


def test_another_database_can_be_named(database: Database, empty: Database) -> None:
    with empty.connect() as connection:
        connection.execute(script("schema.sql", schema="public"))
    with django_connection(database.dsn), django_connection(empty.dsn, "other"):
        with transaction.atomic(using="other"):
            DjangoOutbox(using="other").publish("a", {})
        assert (OutboxMessage.objects.count(), OutboxMessage.objects.using("other").count()) == (0, 1)


def test_a_signal_is_sent_for_a_publish_and_an_exception_of_a_receiver_has_no_effect(
    in_django: Any, caplog: pytest.LogCaptureFixture
) -> None:
    received: list[dict[str, Any]] = []

    def listen(**kwargs: Any) -> None:
        received.append(kwargs)

    def fail(**kwargs: Any) -> None:
        raise RuntimeError("an error in a receiver")

    outbox_message_created.connect(fail)
    outbox_message_created.connect(listen)
    try:
        with caplog.at_level(logging.ERROR), transaction.atomic():
            receipt = publish("order.placed", {"secret": 1}, dedup_key="k")
            publish("order.placed", {"secret": 1}, dedup_key="k")
    finally:
        outbox_message_created.disconnect(fail)
        outbox_message_created.disconnect(listen)
    first = {name: received[0][name] for name in ("event_id", "event_type", "new", "using")}
    assert first == {
        "event_id": receipt.event_id,
        "event_type": "order.placed",
        "new": True,
        "using": "default",
    }
    assert received[1]["new"] is False
    assert OutboxMessage.objects.count() == 1
    assert "raised RuntimeError" in caplog.text
    assert "secret" not in caplog.text


def test_models_read_every_column_also_of_a_row_that_is_parked(in_django: Any, database: Database) -> None:
    with transaction.atomic():
        publish("a", {"n": 1}, headers={"k": "v"}, event_id=UUID(int=7))
        EventStreams(Outbox()).append("default", "order:1", [Event(event_type="b", payload={})])
    with database.connect() as connection:
        connection.execute("UPDATE outbox SET next_attempt_at = 'infinity', ordering_key = 'k' WHERE event_type = 'a'")
    message = OutboxMessage.objects.get(event_type="a")
    assert (message.event_id, message.headers["k"], message.next_attempt_at) == (UUID(int=7), "v", None)
    assert (message.properties, message.declarations, bytes(message.payload)) == ({}, None, b'{"n":1}')
    assert str(StoredEvent.objects.get()) == "order:1 1"
    assert list(DeadLetter.objects.all()) == []


def test_operators_see_the_redacted_payload(in_django: Any) -> None:
    with transaction.atomic():
        publish("user.created", {"name": "a", "password": "hunter2"})
    message = OutboxMessage.objects.get()
    assert message.shown_payload == "<33 bytes of application/json>"
    with override_settings(OUTRIDER={"REDACTOR": f"{__name__}.without_password"}):
        assert message.shown_payload == '{"name": "a", "password": "***"}'
    with override_settings(OUTRIDER={"REDACTOR": "missing.redactor"}):
        assert message.shown_payload == "<hidden>"
    assert b"hunter2" in bytes(OutboxMessage.objects.get().payload)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, []),
        ("wrong", ["outrider.E001"]),
        ({"EXCHANGES": "shop"}, ["outrider.E002"]),
        ({"EXCHANGE": 7, "OUTSIDE_TRANSACTION": "maybe"}, ["outrider.E003", "outrider.E003"]),
        ({"SCHEMA": 7}, ["outrider.E003"]),
        ({"SCHEMA": ""}, ["outrider.E003"]),
        ({"DATABASE": ["default"]}, ["outrider.E003"]),
        ({"SLOT": "Shop's"}, ["outrider.E003"]),
        ({"CONTEXT": {"structlog": "request_id"}}, ["outrider.E003"]),
        ({"CONTEXT": {"sentri": False}}, ["outrider.E003"]),
        ({"DATABASE": "nowhere"}, ["outrider.E004"]),
        ({"DATABASE": "lite"}, ["outrider.E005"]),
        ({"REDACTOR": "missing.redactor"}, ["outrider.E006"]),
        ({"REDACTOR": "os.getcwd"}, ["outrider.E006"]),
        ({"SERVICES": {"MAX_ATTEMPTS": "many", "LEASE_SECONDS": 5}}, ["outrider.E011", "outrider.E011"]),
        ({"CELERY_APP": "missing.app"}, ["outrider.E007"]),
        ({"CELERY_APP": f"{__name__}.plain_app"}, ["outrider.W008"]),
    ],
)
def test_every_mistake_in_the_settings_is_found(settings: Any, expected: list[str]) -> None:
    with override_settings(OUTRIDER=settings):
        assert identities(check_settings()) == expected


plain_app = object()


def test_a_database_without_tables_publication_or_slot_is_found(database: Database, empty: Database) -> None:
    with django_connection(empty.dsn):
        assert check_database(databases=[]) == []
        assert identities(check_database(databases=["default"])) == ["outrider.W009"]
    with django_connection(database.dsn):
        assert identities(check_database(databases=["default"])) == ["outrider.W010", "outrider.W010"]
        with override_settings(OUTRIDER={"PUBLICATION": None, "SLOT": None}):
            assert check_database(databases=["default"]) == []
        errors = StringIO()
        call_command("check", database=["default"], tags=["outrider"], stderr=errors)
        assert "manage.py outbox_setup" in errors.getvalue()


IN_A_SCHEMA = """
import django
from django.conf import settings
settings.configure(
    DATABASES={{"default": {database}}}, INSTALLED_APPS=["outrider.producer.django"], USE_TZ=True,
    OUTRIDER={{"SCHEMA": "Shop's outbox", "PUBLICATION": None, "SLOT": None}},
)
django.setup()
from django.core.management import call_command
from django.db import transaction
from outrider.producer.django.database_checks import check_database
from outrider.producer.django.models import OutboxMessage
from outrider.producer.django.django_outbox import publish

call_command("migrate", "outrider", verbosity=0)
call_command("makemigrations", "outrider", check=True, dry_run=True, verbosity=0)
with transaction.atomic():
    publish("order.placed", {{}})
assert [message.event_type for message in OutboxMessage.objects.all()] == ["order.placed"]
assert check_database(databases=["default"]) == []
call_command("migrate", "outrider", "zero", verbosity=0)
"""


def test_the_outbox_can_be_in_a_schema_of_its_own(empty: Database) -> None:
    with django_connection(empty.dsn) as connection:
        database = {
            key: connection.settings_dict[key] for key in ("ENGINE", "NAME", "HOST", "PORT", "USER", "PASSWORD")
        }
    done = subprocess.run(
        [sys.executable, "-c", IN_A_SCHEMA.format(database=database)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
