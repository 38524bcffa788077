"""`manage.py outbox_signals`, as a process."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import pytest

from outbox.store import Burial, Store
from producer import Outbox
from tests.fixtures.database import Database
from tests.fixtures.services import RunService

SETTINGS = """
DATABASES = {{"default": {{"ENGINE": "django.db.backends.postgresql", "NAME": {name!r}, "HOST": {host!r},
                          "PORT": {port!r}, "USER": {user!r}, "PASSWORD": {password!r}}}}}
INSTALLED_APPS = ["producer.django", "listening"]
SECRET_KEY = "test"
USE_TZ = True
"""
LISTENER = """
from django.apps import AppConfig

class Listening(AppConfig):
    name = "listening"

    def ready(self):
        from producer.django.signals import outbox_message_dead_lettered
        outbox_message_dead_lettered.connect(self.heard)

    def heard(self, messages, **kwargs):
        print("heard of", [each["event_type"] for each in messages], flush=True)
"""


def test_the_command_tells_of_dead_letters_until_it_is_stopped(
    database: Database, run_service: RunService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = urlsplit(database.dsn)
    (tmp_path / "listening").mkdir()
    (tmp_path / "listening" / "__init__.py").write_text("")
    (tmp_path / "listening" / "apps.py").write_text(LISTENER)
    (tmp_path / "application_settings.py").write_text(
        SETTINGS.format(
            name=database.name,
            host=address.hostname,
            port=address.port,
            user=address.username or "",
            password=address.password or "",
        )
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    command = run_service(
        "django", "outbox_signals", "--interval", "0.05", "--lag", "0",
        env={"DJANGO_SETTINGS_MODULE": "application_settings", "PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[2]}"},
    )  # fmt: skip
    command.wait_for_line("watching default")
    with database.connect() as connection:
        with connection.transaction():
            Outbox().publish(connection, "order.placed", {})
        Store(connection, "public").bury([Burial(1, "rejected", "no", 1)])
    command.wait_for_line("heard of ['order.placed']")
    assert command.stop() == 0
