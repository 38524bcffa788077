"""ServiceCommand: runs a service inside Django's process, and sends Django signals for what the services do."""

from __future__ import annotations

from functools import partial
from typing import Any

from django.core.management.base import CommandParser

from outrider.producer.django.click_command import ClickCommand
from outrider.producer.django.services import sending_signals


class ServiceCommand(ClickCommand):
    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--no-signals", action="store_true", help="leave the signals to another process")
        super().add_arguments(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        self.sends_signals = not options.pop("no_signals")
        super().handle(*args, **options)

    def run_command(self, database: str | None, command: partial[Any]) -> None:
        if not self.sends_signals:
            command()
            return
        with sending_signals(database, archives=_archives(command.keywords)):
            command()


def _archives(arguments: dict[str, Any]) -> bool:
    """Whether the service keeps delivered messages, from all sources of its settings."""
    from outrider.settings.loading import load_settings
    from outrider.settings.service import ServiceSettings

    flags = {name: value for name, value in arguments.items() if name != "config"}
    return load_settings(ServiceSettings, flags, config_file=arguments.get("config")).archive
