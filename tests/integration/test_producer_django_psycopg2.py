"""Django on psycopg2: the tests of the Django app, and a site without psycopg 3 and the services' libraries."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.fixtures.commands import environment
from tests.fixtures.database import Database
from tests.fixtures.django import Site
from tests.fixtures.servers import SharedPostgres

ROOT = Path(__file__).parents[2]
AGAIN = {
    "test_producer_django.py": (
        "test_migrate_creates_the_tables_of_schema_sql_and_its_reverse_drops_them",
        "test_a_publish_is_rolled_back_with_its_transaction_or_savepoint",
        "test_another_database_can_be_named",
        "test_models_read_every_column_also_of_a_row_that_is_parked",
        "test_a_database_without_tables_publication_or_slot_is_found",
    ),
    "test_producer_django_watch.py": (
        "test_a_signal_is_sent_once_for_each_delivered_failed_and_buried_message",
        "test_signals_are_sent_after_the_lag",
    ),
    "test_producer_django_admin.py": (
        "test_the_outbox_is_shown_with_its_summary_and_retried_with_attempts_reset",
        "test_replaying_and_discarding_need_a_confirmation",
        "test_dead_letters_are_grouped_by_failure_and_filtered",
        "test_archive_and_streams_are_shown_with_redacted_payloads",
    ),
    "test_producer_django_commands.py": ("test_selected_dead_letters_are_purged_and_replayed",),
}


def test_the_tests_of_the_django_app_pass_on_psycopg2(postgres_server: SharedPostgres) -> None:
    chosen = [f"tests/integration/{file}::{test}" for file, tests in AGAIN.items() for test in tests]
    # Not under xdist, and on the server of this session: starting another would cost more than the tests.
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-p",
            "tests.fixtures.django_psycopg2",
            *chosen,
        ],
        check=False,
        env={**inherited, "PYTHONPATH": str(ROOT), "OUTRIDER_TEST_POSTGRES_URL": postgres_server.url},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert f"{len(chosen)} passed" in done.stdout, done.stdout + done.stderr


BARE = """
import sys
for name in ("psycopg", "pydantic", "pydantic_settings", "click", "kombu", "amqp", "celery", "structlog", "rich"):
    sys.modules[name] = None  # importing it raises ModuleNotFoundError
import django
django.setup()
from django.contrib import admin
from django.core.management import CommandError, call_command
from django.db import transaction
from outrider.producer.django.models import DeadLetter, OutboxMessage
from outrider.producer.django.django_outbox import publish
from outrider.producer.django.store import DjangoStore
from outrider.storage.decision import Burial

assert DeadLetter in admin.site._registry
with transaction.atomic():
    publish("order.placed", {})
DjangoStore().bury([Burial(1, "rejected", "no", 1)])
call_command("outbox_replay_dead_letter", "--all")
assert OutboxMessage.objects.count() == 1
call_command("outbox_stats")
try:
    call_command("outbox_relay")
except CommandError as error:
    assert "pip install 'outrider[services]'" in str(error), error
else:
    raise AssertionError("the relay cannot run without its libraries")
"""


def test_a_site_needs_neither_psycopg_3_nor_the_services_libraries(database: Database) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BARE],
        check=False,
        env=environment(Site(database.dsn, {"SERVICES": {"BROKER_URL": "amqp://"}}).env),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert "pending   1" in done.stdout
