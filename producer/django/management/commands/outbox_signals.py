"""`manage.py outbox_signals`: send Django signals for what the services do, until SIGTERM or SIGINT."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand

from outrider.producer.django.signal_watcher import watch
from outrider.producer.django.signals import INTERVAL_SECONDS, LAG_SECONDS
from outrider.runtime.shutdown import Shutdown


class Command(BaseCommand):
    help = (
        "Send the signals outbox_message_sent, outbox_message_failed and outbox_message_dead_lettered, for services "
        "that run outside Django. One process sends them; others stand by, also outbox_relay and "
        "outbox_retry_scheduler."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--database", metavar="ALIAS", help="default: OUTRIDER['DATABASE']")
        parser.add_argument(
            "--interval", type=float, default=INTERVAL_SECONDS, help="seconds between two reads (default: %(default)g)"
        )
        parser.add_argument(
            "--lag", type=float, default=LAG_SECONDS, help="delay of the signals in seconds (default: %(default)g)"
        )

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
