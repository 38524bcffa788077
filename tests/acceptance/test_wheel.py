"""
The built distribution, as a user gets it: a wheel made from the sdist, installed in an empty environment outside the
clone, beside a project that has packages of its own called `producer`, `consumer` and `outbox`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tarfile
import uuid
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from outrider.embedded.process import ProcessGuard, ServerProcess
from tests.fixtures.broker import Broker
from tests.fixtures.commands import ROOT
from tests.fixtures.database import Database, create_database, drop_database
from tests.fixtures.servers import SharedPostgres
from tests.fixtures.waiting import wait_for

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


@pytest.fixture(scope="session")
def outside() -> Iterator[Path]:
    """A directory outside the clone: pytest's own may be inside, where programs find the clone's configuration."""
    with TemporaryDirectory(prefix="outrider-wheel-") as directory:
        yield Path(directory)


@pytest.fixture(scope="session")
def distribution(outside: Path) -> Path:
    """A directory with the sdist, and the wheel that was built from the sdist."""
    directory = outside / "distribution"
    source = directory / "source"
    listed = _run(["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT).splitlines()
    for name in listed:  # without what building and testing leave behind in the clone
        if (ROOT / name).is_symlink() or (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / name).is_symlink():
                (source / name).symlink_to((ROOT / name).readlink())
            else:
                (source / name).write_bytes((ROOT / name).read_bytes())
    _run([sys.executable, "-m", "build", "--outdir", str(directory), str(source)], cwd=directory)
    return directory


class Adopter:
    """A project in a directory of its own, with an environment that holds the wheel and what it depends on."""

    def __init__(self, directory: Path, scripts: Path, settings: dict[str, str]) -> None:
        self.directory = directory
        self._scripts = scripts
        self._environment = {"PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}", "HOME": str(directory), **settings}
        self._guard = ProcessGuard()
        for name, text in PROJECT.items():
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            (directory / name).write_text(text)
        (directory / "received").mkdir()

    def run(self, *command: str) -> str:
        return _run([str(self._scripts / command[0]), *command[1:]], cwd=self.directory, env=self._environment)

    def start(self, *command: str, until: str) -> ServerProcess:
        log_file = self.directory / f"{command[0]}.log"
        process = self._guard.start(
            [str(self._scripts / command[0]), *command[1:]],
            directory=self.directory,
            environment=self._environment,
            log_file=log_file,
            stop_signal=signal.SIGKILL,
        )
        process.wait_until_ready(lambda: until in log_file.read_text(), 60)
        return process

    def wait_for_letter(self, text: str) -> None:
        received = self.directory / "received" / text
        wait_for(received.exists, deadline_seconds=60, message=f"the letter {text!r} does not arrive")

    def close(self) -> None:
        self._guard.close()


@pytest.fixture
def empty_database(postgres_server: SharedPostgres) -> Iterator[Database]:
    database = create_database(postgres_server.url)
    yield database
    drop_database(database)


@pytest.fixture(scope="session")
def scripts(distribution: Path) -> Path:
    """The scripts of an environment with the wheel, pytest, and what the wheel says that it depends on."""
    venv.create(distribution / "venv", with_pip=True)
    scripts = distribution / "venv" / "bin"
    (wheel,) = distribution.glob("*.whl")
    _run([str(scripts / "pip"), "install", "--quiet", f"{wheel}[consumer,django]", "pytest"], cwd=distribution)
    return scripts


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
        **address,
    }
    (outside / "project").mkdir()
    adopter = Adopter(outside / "project", scripts, settings)
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
        adopter.start("cdc-relay", until="broker_connected"),
        adopter.start("retry-scheduler", until="scheduler_active"),
        adopter.start("outrider", "worker", "consumer.handlers", until="worker_active"),
    ]
    adopter.run("python", "send_letters.py")
    adopter.wait_for_letter("at once")
    adopter.wait_for_letter("delayed")
    for service in services:
        assert service.end(signal.SIGTERM, 60) == 0


def test_a_command_without_its_extra_says_in_one_line_what_to_install(distribution: Path, tmp_path: Path) -> None:
    venv.create(tmp_path, with_pip=True)
    (wheel,) = distribution.glob("*.whl")
    _run([str(tmp_path / "bin" / "pip"), "install", "--quiet", str(wheel)], cwd=tmp_path)
    for command in ("outrider", "cdc-relay", "retry-scheduler"):
        done = subprocess.run([tmp_path / "bin" / command, "--help"], check=False, capture_output=True, text=True)
        assert done.returncode == 2
        assert done.stderr == f"{command}: error: click is not installed: pip install 'outrider[services]'\n"


def test_django_lets_a_project_call_its_applications_producer_and_consumer(scripts: Path, tmp_path: Path) -> None:
    for name in ("producer", "consumer", "outbox"):
        _run([str(scripts / "django-admin"), "startapp", name], cwd=tmp_path, env={"PATH": os.environ["PATH"]})
        assert (tmp_path / name / "models.py").exists()


def _run(command: list[str], *, cwd: Path, env: dict[str, str] | None = None) -> str:
    """Its standard output; what it wrote is in the failure."""
    done = subprocess.run(command, cwd=cwd, env=env, check=False, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout
