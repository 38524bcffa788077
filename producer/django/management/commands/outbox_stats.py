"""`manage.py outbox_stats`: counts of messages, at a bounded cost. `outrider status` also shows the services."""

from __future__ import annotations

from argparse import ArgumentTypeError
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from outrider.producer.django.command_options import command_errors
from outrider.producer.django.store import DjangoStore
from outrider.telemetry.printable import printable, printable_json

MOST = 10_000
"""Counts look at no more rows; one that reaches it means "at least", or is an estimate."""

MOST_TYPES = 50


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise ArgumentTypeError(f"{text!r} is not a number of types")
    return min(int(text), MOST)


class Command(BaseCommand):
    help = "Count pending, retrying, parked and dead messages, in total and by type, and show the oldest that is due."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--format", choices=("text", "json"), default="text", help="json: for machines")
        parser.add_argument("--json", action="store_const", const="json", dest="format", help="like --format json")
        parser.add_argument(
            "--top", type=_count, default=MOST_TYPES, metavar="N", help="show the N most frequent types (default: 50)"
        )
        parser.add_argument("--database", metavar="ALIAS", help="default: OUTRIDER['DATABASE']")

    def handle(self, *args: Any, database: str | None, **options: Any) -> None:  # noqa: ARG002
        with command_errors():
            store = DjangoStore(database)
            sample = store.sample(most=MOST)
            types = store.pending_types(most=MOST, at_most=options["top"])
        if options["format"] == "json":
            document = {**sample._asdict(), "exact_below": MOST, "types": [each._asdict() for each in types]}
            self.stdout.write(printable_json(document))
            return
        self.stdout.write(f"pending   {sample.pending}")
        self.stdout.write(f"retrying  {sample.retrying}")
        self.stdout.write(f"parked    {sample.parked}")
        self.stdout.write(f"dead      {sample.dead}")
        self.stdout.write(f"oldest    {sample.oldest_seconds:.0f} s (without those that are delayed)")
        for each in types:
            self.stdout.write(
                f"  {printable(each.event_type)}: {each.pending} pending, {each.retrying} retrying, "
                f"oldest {each.oldest_seconds:.0f} s"
            )
