"""`manage.py outbox_relay`: cdc-relay in Django's process, with Django's settings and signals."""

from __future__ import annotations

from typing import Any

from outrider.errors import SettingsError
from outrider.producer.django.conf import get_settings
from outrider.producer.django.service_command import ServiceCommand


class Command(ServiceCommand):
    help = (
        "Publish committed messages, straight from PostgreSQL's write-ahead log, until SIGTERM or SIGINT: then finish "
        "what is in flight and exit with 0. Start a second one as a standby."
    )
    plain = "cdc-relay"

    def run(self, database: str | None, callback: Any) -> None:
        settings = get_settings()
        if settings.slot is None or settings.publication is None:
            raise SettingsError("OUTRIDER says that there is no relay: its SLOT or PUBLICATION is None")
        super().run(database, callback)
