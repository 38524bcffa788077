"""`manage.py outbox_replay_dead_letter`: put dead letters back into the outbox."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from outrider.operations.dead_letters import count, replay
from outrider.producer.django.command_options import add_common_arguments, command_errors, message_id, selection
from outrider.producer.django.store import DjangoStore
from outrider.storage.decision import DEAD_LETTER_REASONS
from outrider.telemetry.printable import printable


class Command(BaseCommand):
    help = (
        "Put dead letters back into the outbox, in their old order, with no attempt spent. A message that cannot be "
        "moved stays a dead letter, such as one whose dedup_key is pending again; the first 20 of them are listed. Can "
        "be interrupted and run again."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "idents", metavar="ID", nargs="*", type=message_id, help="a row's id, an event_id or a task id"
        )
        parser.add_argument("--reason", choices=DEAD_LETTER_REASONS, help="why they died")
        parser.add_argument("--all", action="store_true", help="all of them; needed where nothing else is selected")
        parser.add_argument("--rate", type=float, metavar="N", help="at most N messages a second")
        add_common_arguments(parser)

    def handle(self, *args: Any, database: str | None, dry_run: bool, rate: float | None, **options: Any) -> None:  # noqa: ARG002
        if not any(options[name] for name in ("idents", "type", "reason", "all")):
            raise CommandError("say which dead letters: ids, --type, --reason, or --all", returncode=2)
        if rate is not None and not rate > 0:
            raise CommandError("--rate must be more than 0", returncode=2)
        with command_errors():
            store, which = DjangoStore(database), selection(options)
            if dry_run:
                self.stdout.write(f"would replay {count(store, which)}")
                return
            done = replay(store, which, rate=rate)
        self.stdout.write(", ".join(filter(None, (f"replayed {done.replayed}", done.kept_text))))
        for each in done.skipped:
            self.stdout.write(printable(f"  {each.id} (dedup_key {each.dedup_key}): {each.why}"))
