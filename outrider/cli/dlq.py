"""
`outrider dlq`: show the dead letters of consumers, which are in the broker, and send them back to their queue.

outrider.consumer does the work.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from outrider.cli._consumer import import_consumer
from outrider.cli._options import json_flag, limit_option, yes_flag
from outrider.cli._output import confirm, print_line, print_records
from outrider.operations.message_selection import LARGEST_ID
from outrider.runtime.command import HelpfulGroup, settings_flags
from outrider.settings.loading import load_settings
from outrider.settings.service import BrokerTlsSettings
from outrider.settings.worker import WorkerSettings

EXIT_STATUS = "Exit status: 0 done; 1 an error of the broker; 2 wrong usage or settings."
COLUMNS = {
    "event id": "event_id",
    "type": "event_type",
    "routing key": "routing_key",
    "reason": "reason",
    "attempts": "attempts",
    "died": "died_at",
    "error": "error",
}

queue_argument = click.argument("queue", metavar="QUEUE")
broker_flags = settings_flags(
    WorkerSettings, only=["broker_url", *BrokerTlsSettings.model_fields, "connect_timeout_seconds"]
)
reason_option = click.option("--reason", help="why they were buried, such as rejected, undecodable, expired")
event_option = click.option(
    "--event-id", "event_ids", multiple=True, metavar="ID", help="only this message; can be repeated"
)


@click.group(name="dlq", cls=HelpfulGroup, epilog=EXIT_STATUS)
def command() -> None:
    """
    Show or replay the dead letters of consumers.

    They are in the broker, in QUEUE.dlq for each queue of a consumer. These messages were delivered, but the consumer's
    handler failed. Messages that could not be published are in the database: see `outrider dead`.
    """


@command.command(name="list", epilog=EXIT_STATUS)
@queue_argument
@reason_option
@event_option
@limit_option
@json_flag
@broker_flags
def list_command(
    queue: str,
    reason: str | None,
    event_ids: tuple[str, ...],
    limit: int,
    as_json: bool,
    config: str | None,
    **flags: object,
) -> None:
    """
    List the dead letters of QUEUE.

    The oldest comes first. Their bodies are not shown.
    """
    dead_letters, broker = _connect(config, flags)
    letters = dead_letters.find_dead_letters(broker, _main_queue(queue), _condition(reason, event_ids), limit)
    print_records(COLUMNS, (letter._asdict() for letter in letters), as_json=as_json)


@command.command(name="replay", epilog=EXIT_STATUS)
@queue_argument
@reason_option
@event_option
@click.option("--limit", type=click.IntRange(1, LARGEST_ID), metavar="N", help="send back at most N")
@yes_flag
@broker_flags
def replay_command(
    queue: str,
    reason: str | None,
    event_ids: tuple[str, ...],
    limit: int | None,
    yes: bool,
    config: str | None,
    **flags: object,
) -> None:
    """Send the dead letters of QUEUE back to QUEUE only. Each starts again with its first attempt."""
    queue = _main_queue(queue)
    dead_letters, broker = _connect(config, flags)
    if reason is None and not event_ids:
        confirm(lambda: f"Send all dead letters of {queue} back to it?", yes=yes)
    count = dead_letters.replay_dead_letters(broker, queue, _condition(reason, event_ids), limit)
    print_line(f"sent {count} back to {queue}")


def _connect(config: str | None, flags: dict[str, object]) -> tuple[Any, Any]:
    """The module outrider.consumer.dead_letters, and its broker."""
    settings = load_settings(WorkerSettings, flags, config_file=config)
    module = import_consumer("dead_letters")
    broker = module.BrokerHosts(
        settings.broker_url.get_secret_value(),
        connect_timeout_seconds=settings.connect_timeout_seconds,
        name="dlq",
        tls=settings.broker_tls,
    )
    return module, broker


def _main_queue(queue: str) -> str:
    return queue.removesuffix(".dlq")


def _condition(reason: str | None, event_ids: tuple[str, ...]) -> Callable[[Any], bool]:
    def is_selected(letter: Any) -> bool:
        return (reason is None or letter.reason == reason) and (not event_ids or letter.event_id in event_ids)

    return is_selected
