"""`manage.py outbox_purge_dead_letter`: delete old dead letters for good."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from outrider.operations.dead_letters import count, discard
from outrider.producer.django.command_options import add_common_arguments, command_errors, duration, selection
from outrider.producer.django.services import dead_letter_retention
from outrider.producer.django.store import DjangoStore


class Command(BaseCommand):
    help = (
        "Delete old dead letters for good, without confirmation: for cron. Without --older-than and "
        "--created-older-than, those that died longer ago than OUTRIDER['SERVICES']['DEAD_LETTER_RETENTION_SECONDS']."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--older-than", type=duration, metavar="DURATION", help="died longer ago, such as 30d")
        parser.add_argument(
            "--created-older-than", type=duration, metavar="DURATION", help="were enqueued longer ago, such as 90d"
        )
        add_common_arguments(parser)

    def handle(self, *args: Any, database: str | None, dry_run: bool, **options: Any) -> None:  # noqa: ARG002
        with command_errors():
            if options["older_than"] is None and options["created_older_than"] is None:
                options["older_than"] = dead_letter_retention()
                if options["older_than"] is None:
                    text = "give --older-than or --created-older-than, or set DEAD_LETTER_RETENTION_SECONDS in SERVICES"
                    raise CommandError(text, returncode=2)
            store, which = DjangoStore(database), selection(options)
            done = f"would purge {count(store, which)}" if dry_run else f"purged {discard(store, which)}"
        self.stdout.write(done)
