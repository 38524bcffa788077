"""
The built distribution, as a user gets it: a wheel made from the sdist, installed in an empty environment outside the
clone, beside a project that has packages of its own called `producer`, `consumer` and `outbox`.
"""

from __future__ import annotations

import os
import subprocess
import tarfile
import uuid
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures.broker import Broker
from tests.fixtures.commands import ROOT
from tests.fixtures.database import Database, create_database, drop_database
from tests.fixtures.servers import SharedPostgres
from tests.fixtures.waiting import wait_for
from tests.fixtures.wheel import Adopter, run, stop

PROJECT = {
    "manage.py": """
import os, sys
os.environ["DJANGO_SETTINGS_MODULE"] = "site_settings"
from django.core.management import execute_from_command_line
execute_from_command_line(sys.argv)
""",
    "site_settings.py": """
import os
DATABASES = {"default": {
    "ENGINE": "django.db.backends.postgresql", "NAME": os.environ["PGDATABASE"], "HOST": os.environ["PGHOST"],
    "PORT": os.environ["PGPORT"], "USER": os.environ["PGUSER"],
}}
INSTALLED_APPS = ["django.contrib.auth", "django.contrib.contenttypes", "outbox", "outrider.producer.django"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
OUTRIDER = {"EXCHANGE": "amq.topic", "SLOT": os.environ["OUTRIDER_SLOT"]}
SECRET_KEY = "a project of its own"
USE_TZ = True
""",
    "producer/__init__.py": """
from django.db import transaction
from outbox.models import Letter
from outrider.producer.django import publish

def send(text, **options):
    with transaction.atomic():
        letter = Letter.objects.create(text=text)
        publish("letter.sent", {"letter": letter.pk, "text": text}, **options)
""",
    "consumer/__init__.py": "",
    "consumer/handlers.py": """
import os, pathlib
from outrider.consumer import consume

@consume("letter.*", queue=os.environ["QUEUE"])
def receive(body: dict) -> None:
    pathlib.Path("received", body["text"]).write_text(str(body["letter"]))
""",
    "outbox/__init__.py": "",
    "outbox/models.py": """
from django.db import models

class Letter(models.Model):
    text = models.TextField()
""",
    "send_letters.py": """
import os, django
os.environ["DJANGO_SETTINGS_MODULE"] = "site_settings"
django.setup()
import producer
producer.send("at once")
producer.send("delayed", deliver_after=1)
""",
    "test_project.py": """
from outrider import Outbox

def test_our_own_packages_are_ours():
    import consumer.handlers, outbox
    assert not hasattr(outbox, "Outbox")
    assert consumer.handlers.receive.queue

def test_what_is_published_is_recorded(outbox, assert_event_published):
    Outbox("amq.topic").publish(None, "letter.sent", {"text": "hello"})
    assert_event_published("letter.sent", payload={"text": "hello"})
""",
}

# The environment is shared with tests of applications that need more than the extras `consumer` and `django`.
NOT_INSTALLED = "import sys; sys.modules.update(celery=None, sqlalchemy=None)"


@pytest.fixture
def empty_database(postgres_server: SharedPostgres) -> Iterator[Database]:
    database = create_database(postgres_server.url)
    yield database
    drop_database(database)


@pytest.fixture
def adopter(scripts: Path, outside: Path, rabbit: Broker, empty_database: Database) -> Iterator[Adopter]:
    with empty_database.connect() as connection:
        info = connection.info
        address = {"PGHOST": info.host, "PGPORT": str(info.port), "PGUSER": info.user, "PGDATABASE": info.dbname}
    queue = f"{rabbit.prefix}.letters"
    settings = {
        "QUEUE": queue,
        "OUTRIDER_DATABASE_URL": empty_database.dsn,
        "OUTRIDER_BROKER_URL": rabbit.url,
        "OUTRIDER_SLOT": f"slot_{uuid.uuid4().hex[:10]}",
        "OUTRIDER_LOG_FORMAT": "json",
        "PYTHONPATH": str(outside / "blocked"),
        **address,
    }
    (outside / "blocked").mkdir()
    (outside / "blocked" / "sitecustomize.py").write_text(NOT_INSTALLED)
    adopter = Adopter(outside / "project", scripts, settings)
    adopter.write(PROJECT)
    (adopter.directory / "received").mkdir()
    yield adopter
    adopter.close()
    for name in (queue, f"{queue}.dlq"):
        rabbit.delete_queue(name)


def test_sdist_and_wheel_hold_one_package_with_the_sql_and_the_templates(distribution: Path) -> None:
    (wheel,) = distribution.glob("*.whl")
    (sdist,) = distribution.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    with tarfile.open(sdist) as source:
        assert not [member.name for member in source if member.issym() or member.islnk()]
    packages = {name.partition("/")[0] for name in names}
    assert packages == {"outrider", f"{wheel.name.removesuffix('-py3-none-any.whl')}.dist-info"}
    parts = ("producer", "consumer", "cdc_relay", "retry_scheduler")
    assert {f"outrider/{part}/__init__.py" for part in parts} | {"outrider/py.typed"} <= set(names)
    shipped = {name.removeprefix("outrider/") for name in names}
    kept = {str(path.relative_to(ROOT)) for path in (ROOT / "sql").rglob("*.sql")}
    kept |= {str(path.relative_to(ROOT)) for path in (ROOT / "producer").rglob("*.html")}
    assert kept
    assert kept <= shipped


def test_a_project_with_packages_of_the_same_names_sends_and_receives(adopter: Adopter) -> None:
    assert "created" in adopter.run("outrider", "setup")
    adopter.run("python", "manage.py", "makemigrations", "outbox")
    adopter.run("python", "manage.py", "migrate")
    adopter.run("python", "-m", "pytest", "-q", "-p", "no:cacheprovider")

    services = [
        *adopter.start_services(),
        adopter.start("outrider", "worker", "consumer.handlers", until="worker_active"),
    ]
    adopter.run("python", "send_letters.py")
    for text in ("at once", "delayed"):
        received = adopter.directory / "received" / text
        wait_for(received.exists, deadline_seconds=60, message=f"the letter {text!r} does not arrive")
    stop(*services)


def test_a_command_without_its_extra_says_in_one_line_what_to_install(distribution: Path, tmp_path: Path) -> None:
    venv.create(tmp_path, with_pip=True)
    (wheel,) = distribution.glob("*.whl")
    run([str(tmp_path / "bin" / "pip"), "install", "--quiet", str(wheel)], cwd=tmp_path)
    for command in ("outrider", "cdc-relay", "retry-scheduler"):
        done = subprocess.run([tmp_path / "bin" / command, "--help"], check=False, capture_output=True, text=True)
        assert done.returncode == 2
        assert done.stderr == f"{command}: error: click is not installed: pip install 'outrider[services]'\n"


def test_django_lets_a_project_call_its_applications_producer_and_consumer(scripts: Path, tmp_path: Path) -> None:
    for name in ("producer", "consumer", "outbox"):
        run([str(scripts / "django-admin"), "startapp", name], cwd=tmp_path, env={"PATH": os.environ["PATH"]})
        assert (tmp_path / name / "models.py").exists()
