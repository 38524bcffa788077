"""ServiceCommand: a service inside Django's process, with the signals that tell what the services did beside it."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from outrider.producer.django.click_command import PlainCommand
from outrider.producer.django.services import signals_told


class ServiceCommand(PlainCommand):
    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--no-signals", action="store_true", help="leave the signals to another process")
        super().add_arguments(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        self.signals = not options.pop("no_signals")
        super().handle(*args, **options)

    def run(self, database: str | None, callback: Any) -> None:
        if not self.signals:
            callback()
            return
        with signals_told(database):
            callback()
