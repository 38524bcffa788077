"""A generated Django project, driven with its manage.py: checks, where messages go, signals, commands."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from outrider.embedded.postgres import Postgres
from outrider.storage.decision import Burial
from outrider.storage.store import Store
from tests.fixtures.broker import Broker
from tests.fixtures.database import Database, create_database, drop_database
from tests.fixtures.django_project import Project
from tests.fixtures.servers import SharedPostgres
from tests.fixtures.services import RunService
from tests.fixtures.stage import Stage

CELERY = """
import os
from outrider.producer.celery import OutboxCelery, TaskOutbox
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")
app = OutboxCelery("shop", broker="memory://", outbox=TaskOutbox(django=True))
fixed = OutboxCelery("fixed", broker="memory://", outbox=TaskOutbox(django="default"))

@app.task(name="shop.bill")
def bill(order):
    pass

@fixed.task(name="shop.fixed")
def fixed_task(order):
    pass
"""
BROKEN = """
raise KeyError("BROKER_ADDRESS")
"""
MODELS = """
from outrider.producer.django import signals

def tell(name):
    def receiver(sender, signal, **kwargs):
        for each in kwargs.get("messages", [kwargs]):
            print("signal:", name, each["event_type"], each["task_name"], each["task_id"], flush=True)
    return receiver

receivers = {}
for name in ("created", "sent", "failed", "dead_lettered"):
    receivers[name] = tell(name)
    getattr(signals, f"outbox_message_{name}").connect(receivers[name])
"""
PRIVACY = """
def redact(payload):
    return payload
"""
TESTS = """
from django.test import TestCase

class ShopTest(TestCase):
    def test_nothing(self):
        pass
"""
FILES = {
    "shop/__init__.py": "from shop.celery import app\n",
    "shop/celery.py": CELERY,
    "shop/broken.py": BROKEN,
    "shop/models.py": MODELS,
    "shop/privacy.py": PRIVACY,
    "shop/tests.py": TESTS,
}
OTHER_DATABASE = 'DATABASES["messages"] = {**DATABASES["default"], "NAME": os.environ.get("SHOP_MESSAGES", "none")}'


@pytest.fixture
def empty(postgres_server: SharedPostgres) -> Iterator[Database]:
    """A database without the outbox's tables."""
    fresh = create_database(postgres_server.url)
    yield fresh
    drop_database(fresh)


@pytest.fixture
def project(tmp_path: Path, database: Database) -> Project:
    """On a database with the outbox's tables."""
    return Project(tmp_path, database.dsn, files=FILES, settings=OTHER_DATABASE).create()


def bury(database: Database, *ids: int) -> None:
    with database.connect() as connection:
        Store(connection, "public").bury([Burial(each, "rejected", "no", 1) for each in ids])


@pytest.mark.parametrize(
    ("outbox", "found"),
    [
        ({"SCHEMA": 7}, "(outrider.E003) OUTRIDER['SCHEMA'] must be a str, not int"),
        ({"CELERY_APP": "shop.broken.app"}, "(outrider.E007) OUTRIDER['CELERY_APP']: 'shop.broken.app' cannot be "
                                            "imported: KeyError: 'BROKER_ADDRESS'"),
        ({"REDACTOR": "shop.privacy.redact"}, "(outrider.E006) OUTRIDER['REDACTOR']: redactor 'shop.privacy.redact' "
                                              "must take (event_type, payload, headers)"),
        ({"SERVICES": {"MAX_ATTEMPTS": "many"}}, "(outrider.E011) OUTRIDER['SERVICES']: max_attempts: input should be "
                                                 "a valid integer"),
        ({"CELERY_APP": "shop.celery.fixed", "SCHEMA": "mine"}, ""),
        ({"CELERY_APP": "shop.celery.fixed", "DATABASE": "messages"},
         "(outrider.W014) shop.celery.fixed writes its tasks to the database 'default', schema 'public', and OUTRIDER "
         "says 'messages', 'public'"),
        ({"DATABASE": "messages"}, "(outrider.W014) the current Celery application writes its tasks to the database "
                                   "'default', schema 'public', and OUTRIDER says 'messages', 'public'"),
        ({"CELERY_APP": "shop.celery.app", "DATABASE": "messages", "SCHEMA": "mine"}, ""),
    ],
)  # fmt: skip
def test_a_wrong_setting_is_a_finding_with_its_cause(project: Project, outbox: dict[str, Any], found: str) -> None:
    done = project.manage("check", "--database", "default", outbox=outbox)
    assert "Traceback" not in done.stderr
    if found:
        assert found in done.stderr
        assert done.returncode == (0 if "W0" in found else 1)
    else:
        assert done.returncode == 0
        assert "W014" not in done.stderr


def test_a_slot_of_another_database_and_a_missing_publication_are_found(project: Project, empty: Database) -> None:
    slot = f"slot_{empty.name}"
    with empty.connect() as connection:
        connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [slot])
    done = project.manage("check", "--database", "default", outbox={"SLOT": slot})
    assert done.returncode == 0
    assert f"(outrider.W010) slot {slot} belongs to database {empty.name}: the relay cannot deliver" in done.stderr
    assert "(outrider.W010) there is no publication 'outbox': the relay cannot deliver" in done.stderr
    done = project.manage("test")
    assert done.returncode == 0, done.stderr
    assert "Ran 1 test" in done.stderr
    assert "outrider." not in done.stderr


def test_a_database_that_cannot_be_reached_is_one_line(project: Project) -> None:
    with (project.directory / "shop" / "settings.py").open("a") as settings:
        settings.write('\nDATABASES["default"] |= {"HOST": "127.0.0.1", "PORT": "1"}\n')
    for arguments in (["check", "--database", "default"], ["migrate"]):
        done = project.manage(*arguments)
        assert done.returncode == 1
        assert "(outrider.E012) the database 'default' cannot be reached: connection" in done.stderr
        assert "Traceback" not in done.stderr
    for arguments in (["outbox_stats"], ["outbox_purge_dead_letter", "--older-than", "1d"]):
        done = project.manage(*arguments)
        assert (done.returncode, len(done.stderr.splitlines())) == (1, 1), done.stderr
    done = project.manage("outbox_stats", "--database", "nowhere")
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr


ENQUEUE = """
import json
from django.db import transaction
from outrider.producer.django import publish
from outrider.producer.django.models import OutboxMessage
from shop.celery import bill

with transaction.atomic(using="messages"):
    publish("order.placed", {})
    bill.delay(1)
    first = list(OutboxMessage.objects.order_by("id").values_list("event_type", flat=True))
    transaction.set_rollback(True, using="messages")
print(json.dumps([first, OutboxMessage.objects.count(), OutboxMessage.objects.all().db]))
"""


def test_one_setting_says_the_database_and_the_schema_of_events_tasks_and_models(
    project: Project, empty: Database
) -> None:
    outbox = {"DATABASE": "messages", "SCHEMA": "Shop's outbox"}
    options: dict[str, Any] = {"outbox": outbox, "env": {"SHOP_MESSAGES": empty.name}}
    done = project.manage("migrate", "--database", "messages", **options)
    assert done.returncode == 0, done.stderr
    assert project.shell(ENQUEUE, **options) == [["order.placed", "shop.bill"], 0, "messages"]
    stats = project.manage("outbox_stats", "--format", "json", **options)
    assert json.loads(stats.stdout)["pending"] == 0


CREATED = """
import json
from celery import group
from django.db import transaction
from outrider.producer.django import publish, signals
from shop.celery import bill

received = []
def listen(sender, signal, **kwargs):
    received.append({name: str(value) for name, value in kwargs.items()})
signals.outbox_message_created.connect(listen)
with transaction.atomic():
    publish("order.placed", {})
    result = bill.delay(1)
    group(bill.s(2), bill.s(3)).delay()
print(json.dumps([received, result.id]))
"""


def test_the_signal_of_a_new_message_is_sent_for_celery_tasks_too(project: Project) -> None:
    [received, task_id] = project.shell(CREATED)
    event, task, *group = received
    assert (event["event_type"], event["task_name"], event["task_id"]) == ("order.placed", "None", "None")
    expected = {"event_id": task_id, "event_type": "shop.bill", "task_id": task_id, "task_name": "shop.bill"}
    assert task == {**expected, "new": "True", "using": "default"}
    assert [each["task_name"] for each in group] == ["shop.bill", "shop.bill"]


ENQUEUE_FOR_SIGNALS = """
import json
from django.db import transaction
from outrider.producer.django import publish
from shop.celery import bill
with transaction.atomic():
    publish("order.placed", {}, exchange="", routing_key=QUEUE)
    sent = bill.apply_async([1], queue=QUEUE)
    dead = bill.apply_async([2], exchange="no exchange of this name", routing_key="x")
print(json.dumps([sent.id, dead.id]))
"""


def test_a_service_in_django_sends_signals_with_the_task_also_without_the_archive(
    stage: Stage, rabbit: Broker, tmp_path: Path, run_service: RunService
) -> None:
    services = {"BROKER_URL": rabbit.url, "LOG_FORMAT": "json", "MAX_ATTEMPTS": 2, "BACKOFF_SECONDS": 6}
    project = Project(tmp_path, stage.database.dsn, {"SLOT": stage.slot, "SERVICES": services}, files=FILES).create()
    queue = rabbit.declare_queue()
    relay = project.start(run_service, "outbox_relay")
    relay.wait_for_line("broker_connected", deadline_seconds=60)
    scheduler = project.start(run_service, "outbox_retry_scheduler", "--poll-seconds", "0.1", "--no-signals")
    sent, dead = project.shell(f"QUEUE = {queue!r}\n{ENQUEUE_FOR_SIGNALS}")
    for line in (
        "signal: sent order.placed None None",
        f"signal: sent shop.bill shop.bill {sent}",
        f"signal: failed shop.bill shop.bill {dead}",
        f"signal: dead_lettered shop.bill shop.bill {dead}",
    ):
        relay.wait_for_line(line, deadline_seconds=60)
    assert (relay.stop(), scheduler.stop()) == (0, 0)
    assert relay.output().count(f"signal: sent shop.bill shop.bill {sent}") == 1
    assert "signal:" not in scheduler.output()
    assert stage.rows("outbox_archive") == []


def test_setup_creates_everything_from_djangos_own_settings(
    private_postgres: Callable[..., Postgres], tmp_path: Path
) -> None:
    server = private_postgres()
    project = Project(tmp_path, server.dsn()).create()
    done = project.manage("outbox_setup", "--roles")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "slot outbox: created" in done.stdout
    assert "roles of the schema public: created outbox_producer, outbox_relay" in done.stdout
    again = project.manage("outbox_setup", "--roles")
    assert again.returncode == 0, again.stderr
    assert "slot outbox: already exists" in again.stdout
    assert "roles of the schema public: already exist; granted" in again.stdout
    assert project.manage("migrate").returncode == 0
    done = project.manage("check", "--database", "default", "--fail-level", "WARNING")
    assert (done.returncode, done.stderr) == (0, "")
    done = project.manage("outbox_doctor", "--json")
    findings = {each["check"]: each["level"] for each in json.loads(done.stdout)["findings"]}
    assert findings["slot"] == findings["publication"] == findings["grants of the relay"] == "ok"


PUBLISH_THREE = """
import json
from django.db import transaction
from outrider.producer.django import publish
with transaction.atomic():
    for each in ("order.placed", "order.placed", "order.paid"):
        publish(each, {})
print(json.dumps(None))
"""


def test_stats_have_a_format_and_a_length_and_the_purge_knows_the_retention(
    project: Project, database: Database
) -> None:
    project.shell(PUBLISH_THREE)
    done = project.manage("outbox_stats", "--format", "json", "--top", "1")
    assert [each["event_type"] for each in json.loads(done.stdout)["types"]] == ["order.placed"]
    assert "order.paid" not in project.manage("outbox_stats", "--top", "1").stdout
    bury(database, 1, 2, 3)
    with database.connect() as connection:
        connection.execute("UPDATE outbox_dead_letter SET created_at = created_at - interval '90 days' WHERE id = 1")
        connection.execute("UPDATE outbox_dead_letter SET died_at = died_at - interval '9 days' WHERE id = 2")
    purge = "outbox_purge_dead_letter"
    done = project.manage(purge, "--dry-run")
    assert (done.returncode, "DEAD_LETTER_RETENTION_SECONDS" in done.stderr) == (2, True)
    assert project.manage(purge, "--created-older-than", "60d").stdout == "purged 1\n"
    outbox = {"SERVICES": {"DEAD_LETTER_RETENTION_SECONDS": 8 * 86400}}
    assert project.manage(purge, outbox=outbox).stdout == "purged 1\n"
    assert project.manage(purge, outbox=outbox).stdout == "purged 0\n"


CONTEXT = """
import json
import structlog
from django.db import transaction
from outrider.producer.django import publish
from outrider.producer.django.models import OutboxMessage
from shop.celery import bill
structlog.contextvars.bind_contextvars(request_id="r-1", secret="s")
with transaction.atomic():
    publish("order.placed", {})
    bill.delay(1)
print(json.dumps([message.context for message in OutboxMessage.objects.order_by("id")]))
"""


def test_a_setting_stores_the_log_context_of_events_and_tasks(project: Project) -> None:
    assert project.shell(CONTEXT) == [None, None]
    contexts = project.shell(CONTEXT, outbox={"CONTEXT": {"structlog": ["request_id"]}})
    assert contexts[2:] == [{"request_id": "r-1"}, {"request_id": "r-1"}]


COUNT_BUILDS = """
import json
from django.db import transaction
from outrider.storage import sql_files
built = []
build = sql_files._substitute
sql_files._substitute = lambda text, variables: built.append(text) or build(text, variables)
from outrider.producer.django import publish
counts = []
with transaction.atomic():
    for _ in range(3):
        publish("order.placed", {})
        counts.append(len(built))
print(json.dumps(counts))
"""


def test_the_queries_of_publish_are_built_once_per_process(project: Project) -> None:
    first, second, third = project.shell(COUNT_BUILDS)
    assert first == second == third


URLS = """
from django.urls import include, path
urlpatterns = [path("outbox/", include("outrider.producer.django.urls"))]
"""
READ_VIEWS = """
import json
from django.contrib.auth.models import Permission, User
from django.test import Client

def read(client, path):
    answer = client.get(f"/outbox/{path}", headers={"host": "localhost"})
    return [answer.status_code, answer.json()]

anyone, reader, other = Client(), Client(), Client()
user = User.objects.create_user("reader")
user.user_permissions.add(Permission.objects.get(codename="view_outboxmessage"))
reader.force_login(user)
other.force_login(User.objects.create_user("other"))
paths = ("health/workers", "health/queues", "statistics")
refused = [read(client, path)[0] for client in (anyone, other) for path in paths]
answers = [read(reader, path) for path in (*paths, "health/queues?overdue=1", "statistics?top=x")]
print(json.dumps([refused, answers, reader.post("/outbox/statistics", headers={"host": "localhost"}).status_code]))
"""


def test_health_and_statistics_are_json_for_users_with_the_permission(project: Project, database: Database) -> None:
    (project.directory / "shop" / "urls.py").write_text(URLS)
    assert project.manage("migrate").returncode == 0
    project.shell(PUBLISH_THREE)
    bury(database, 3)
    with database.connect() as connection:
        Store(connection, "public").worker_seen("relay", "relay-1", "active")
        connection.execute("UPDATE outbox SET next_attempt_at = clock_timestamp() - interval '1 minute' WHERE id = 1")
    refused, answers, after_post = project.shell(READ_VIEWS)
    assert refused == [401, 401, 401, 403, 403, 403]
    workers, queues, statistics, overdue, wrong = answers
    assert (workers[0], workers[1]["missing"]) == (503, ["scheduler"])
    assert [(each["name"], each["stale"]) for each in workers[1]["workers"]] == [("relay-1", False)]
    assert queues[0] == 200
    counts = {name: queues[1][name] for name in ("pending", "due", "with_relay", "dead", "dead_by_reason")}
    assert counts == {"pending": 2, "due": 1, "with_relay": 1, "dead": 1, "dead_by_reason": {"rejected": 1}}
    assert statistics[0] == 200
    assert [(each["event_type"], each["pending"]) for each in statistics[1]["pending"]] == [("order.placed", 2)]
    assert [(each["event_type"], each["messages"]) for each in statistics[1]["dead"]] == [("order.paid", 1)]
    assert (overdue[0], overdue[1]["healthy"], wrong[0], after_post) == (503, False, 400, 405)
    open_to_all = project.shell(
        READ_VIEWS.replace('create_user("', 'create_user("2'), outbox={"HEALTH_PERMISSION": None}
    )
    assert open_to_all[0] == [503, 200, 200, 503, 200, 200]


PYTEST_TESTS = """
import django
django.setup()

import pytest
from django.db import connection, transaction
from django.test import TransactionTestCase
from outrider import Outbox
from outrider.producer.django import publish
from shop.celery import app, bill

class Undo(Exception):
    pass

@app.task(name="shop.follow")
def follow(text):
    done.append(text)

@app.task(name="shop.start")
def start(order):
    follow.delay(f"order {order}")
    return f"result {order}"

@app.task(name="shop.fail")
def fail():
    raise Undo

done = []

def types(outbox):
    return [message.event_type for message in outbox.messages]

def test_a_rolled_back_savepoint_or_transaction_takes_its_messages_back(outbox):
    with transaction.atomic():
        publish("kept", {})
        with pytest.raises(Undo), transaction.atomic():
            publish("undone", {}, dedup_key="k")
            with transaction.atomic():
                bill.delay(1)
            raise Undo
        by_hand = transaction.savepoint()
        publish("undone by hand", {})
        transaction.savepoint_rollback(by_hand)
        with transaction.atomic():
            publish("kept too", {}, dedup_key="k")
            bill.delay(2)
        assert types(outbox) == ["kept", "kept too", "shop.bill"]
    with pytest.raises(Undo), transaction.atomic():
        publish("undone", {})
        bill.delay(3)
        raise Undo
    publish("outside", {})
    with pytest.raises(Undo), transaction.atomic():
        raise Undo
    assert types(outbox) == ["kept", "kept too", "shop.bill", "outside"]

def test_the_fake_relay_runs_tasks_with_those_that_follow(outbox, fake_relay):
    with transaction.atomic():
        publish("order.placed", {})
        (start.s(1) | follow.s()).delay()
        start.apply_async((2,), link=follow.s())
    delivered = fake_relay(app)
    assert sorted(done) == ["order 1", "order 2", "result 1", "result 2"]
    assert len(delivered) == 7
    assert outbox.messages == []
    with pytest.raises(Undo):
        fail.delay()
        fake_relay(app)

def test_the_fake_relay_calls_a_function_with_rows_of_the_table(fake_relay):
    found = []
    with transaction.atomic():
        publish("order.placed", {"order": 1})
        fake_relay(found.append, connection)
    assert [(message.routing_key, message.body) for message in found] == [("order.placed", b'{"order":1}')]
"""


def test_the_pytest_plugin_follows_rollbacks_and_relays_to_an_application_or_a_function(project: Project) -> None:
    (project.directory / "test_shop.py").write_text(PYTEST_TESTS)
    done = project.run("-m", "pytest", "-q", "-p", "no:cacheprovider", env={"DJANGO_SETTINGS_MODULE": "shop.settings"})
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout
