"""`manage.py outbox_signals`: send the signals that tell what the services did, until SIGTERM or SIGINT."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand
from django.db import OperationalError, close_old_connections

from outbox.shutdown import Shutdown
from producer.django.watch import Watcher


class Command(BaseCommand):
    help = "Send outbox_message_sent, outbox_message_failed and outbox_message_dead_lettered as they happen."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--database", default=None, help="alias; default: OUTBOX['DATABASE']")
        parser.add_argument("--interval", type=float, default=1, help="seconds between two looks (default: 1)")
        parser.add_argument("--lag", type=float, default=2, help="how late rows are told, in seconds (default: 2)")

    def handle(self, *args: Any, database: str | None, interval: float, lag: float, **options: Any) -> None:  # noqa: ARG002
        with Shutdown() as shutdown:
            watcher = Watcher(database, lag_seconds=lag)
            self.stderr.write(f"watching {watcher.using}")
            while not shutdown.requested:
                try:
                    told = watcher.run_once()
                except OperationalError as error:
                    # The place is kept: what happens meanwhile is told after the reconnect.
                    self.stderr.write(f"the database does not answer: {str(error).splitlines()[0]}")
                    close_old_connections()
                    told = None
                if told is None or not any(told):
                    shutdown.wait(interval)
