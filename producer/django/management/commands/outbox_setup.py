"""`manage.py outbox_setup`: `outrider setup` with Django's settings."""

from __future__ import annotations

from functools import partial
from typing import Any

from outrider.producer.django.click_command import ClickCommand
from outrider.producer.django.conf import get_settings


class Command(ClickCommand):
    help = (
        "Create what is missing of the tables, the publication, the slot and (with --roles) the roles, in the database "
        "of OUTRIDER. Without SLOT or PUBLICATION: for a scheduler alone. Can be run again at any time."
    )
    command_line = "outrider setup"

    def run_command(self, database: str | None, command: partial[Any]) -> None:
        settings = get_settings()
        no_relay = settings.slot is None or settings.publication is None
        super().run_command(database, partial(command, polling_only=True) if no_relay else command)
