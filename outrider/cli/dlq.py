"""
`outrider dlq`: look at the dead letters that workers left in the broker, and send them back to their queue.

The package `consumer` does the work; it is imported by name when the command runs, as in `outrider worker`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import click

from outrider.cli._options import json_flag, limit_option
from outrider.cli._output import ask, print_records
from outrider.errors import SettingsError
from outrider.operations.selection import LARGEST_ID
from outrider.runtime.command import settings_flags
from outrider.settings.loading import load_settings
from outrider.settings.models import BrokerTls, WorkerSettings

EXIT_STATUS = "Exit status: 0 done; 1 the broker said no; 2 wrong usage or settings."
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
broker_flags = settings_flags(WorkerSettings, only=["broker_url", *BrokerTls.model_fields, "connect_timeout_seconds"])
reason_option = click.option("--reason", help="why they died: max attempts, rejected, undecodable, expired, ...")
event_option = click.option("--event-id", "event_ids", multiple=True, metavar="ID", help="this one; can be repeated")


@click.group(name="dlq", epilog=EXIT_STATUS)
def command() -> None:
    """
    Look at the dead letters of a consumer's queue in the broker, and send them back.

    These are messages that were delivered and that a handler could not handle. Messages that could not be sent are in
    the database: see `outrider dead`.
    """


@command.command(name="list", epilog=EXIT_STATUS)
@queue_argument
@reason_option
@event_option
@limit_option()
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
    """The dead letters of QUEUE (in QUEUE.dlq), the oldest first. Bodies are not shown."""
    consumer, broker = _consumer(config, flags)
    letters = consumer.find_dead_letters(broker, _main_queue(queue), _wanted(reason, event_ids), limit)
    print_records(COLUMNS, (letter._asdict() for letter in letters), as_json=as_json)


@command.command(name="replay", epilog=EXIT_STATUS)
@queue_argument
@reason_option
@event_option
@click.option("--limit", type=click.IntRange(1, LARGEST_ID), metavar="N", help="no more than so many")
@click.option("--yes", is_flag=True, help="do not ask")
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
    """Send the dead letters of QUEUE back to it, and to no other queue, as a first attempt each."""
    queue = _main_queue(queue)
    consumer, broker = _consumer(config, flags)
    if reason is None and not event_ids:
        ask(lambda: f"Send all dead letters of {queue} back to it?", yes=yes)
    count = consumer.replay_dead_letters(broker, queue, _wanted(reason, event_ids), limit)
    click.echo(f"sent {count} back to {queue}")


def _consumer(config: str | None, flags: dict[str, object]) -> tuple[Any, Any]:
    """The module that knows dead letters, and where the broker is."""
    settings = load_settings(WorkerSettings, flags, config_file=config)
    try:
        module = importlib.import_module("outrider.consumer.dead_letters")
    except ModuleNotFoundError as error:
        raise SettingsError(f"{error.name} is not installed: pip install 'outrider[consumer]'") from None
    broker = module.Broker(
        settings.broker_url.get_secret_value(),
        connect_timeout_seconds=settings.connect_timeout_seconds,
        name="dlq",
        tls=settings.broker_tls,
    )
    return module, broker


def _main_queue(queue: str) -> str:
    return queue.removesuffix(".dlq")


def _wanted(reason: str | None, event_ids: tuple[str, ...]) -> Callable[[Any], bool]:
    def wanted(letter: Any) -> bool:
        return (reason is None or letter.reason == reason) and (not event_ids or letter.event_id in event_ids)

    return wanted
