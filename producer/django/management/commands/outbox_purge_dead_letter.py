"""`manage.py outbox_purge_dead_letter`: delete old dead letters for good."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from outrider.operations.dead_letters import count, discard
from outrider.producer.django.command_options import add_common_arguments, command_errors, duration, selection
from outrider.producer.django.store import DjangoStore


class Command(BaseCommand):
    help = "Delete old dead letters for good, without confirmation: for cron. See also outrider.producer.django.tasks."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--older-than", type=duration, required=True, metavar="DURATION", help="died longer ago, such as 30d"
        )
        add_common_arguments(parser)

    def handle(self, *args: Any, database: str | None, dry_run: bool, **options: Any) -> None:  # noqa: ARG002
        store, which = DjangoStore(database), selection(options)
        with command_errors():
            done = f"would purge {count(store, which)}" if dry_run else f"purged {discard(store, which)}"
        self.stdout.write(done)
