"""`manage.py outbox_signals`: send the signals that tell what the services did, until SIGTERM or SIGINT."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand

from outrider.producer.django.signal_watcher import watch
from outrider.runtime.shutdown import Shutdown


class Command(BaseCommand):
    help = (
        "Send outbox_message_sent, outbox_message_failed and outbox_message_dead_lettered as they happen: for services "
        "that run outside Django. One process tells; further ones stand by, also those of outbox_relay and "
        "outbox_retry_scheduler."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--database", metavar="ALIAS", help="default: OUTRIDER['DATABASE']")
        parser.add_argument("--interval", type=float, default=1, help="seconds between two looks (default: 1)")
        parser.add_argument("--lag", type=float, default=2, help="how late rows are told, in seconds (default: 2)")

    def handle(self, *args: Any, database: str | None, interval: float, lag: float, **options: Any) -> None:  # noqa: ARG002
        with Shutdown() as shutdown:
            watch(
                shutdown.wait,
                using=database,
                interval_seconds=interval,
                lag_seconds=lag,
                say=self.stderr.write,
                warn=self.stderr.write,
            )
