"""`manage.py outbox_relay`: cdc-relay in Django's process, with Django's settings and signals."""

from __future__ import annotations

from functools import partial
from typing import Any

from outrider.errors import SettingsError
from outrider.producer.django.conf import get_settings
from outrider.producer.django.service_command import ServiceCommand


class Command(ServiceCommand):
    help = (
        "Publish committed messages from PostgreSQL's write-ahead log, until SIGTERM or SIGINT: then finish what is in "
        "flight and exit with 0. A second process is a standby."
    )
    command_line = "cdc-relay"

    def run_command(self, database: str | None, command: partial[Any]) -> None:
        settings = get_settings()
        if settings.slot is None or settings.publication is None:
            raise SettingsError("OUTRIDER['SLOT'] or OUTRIDER['PUBLICATION'] is None: this project runs no relay")
        super().run_command(database, command)
