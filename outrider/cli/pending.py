"""
`outrider pending`: show messages that are not delivered yet, and make them due now.
"""

from __future__ import annotations

from typing import Any

import click

from outrider.cli._options import (
    EXIT_STATUS,
    all_flag,
    database_flags,
    dry_run_flag,
    json_flag,
    limit_option,
    message_id,
    open_store,
    payload_flag,
    redactor_flags,
    selection_options,
    take_selection,
    text,
)
from outrider.cli._output import print_records, print_result
from outrider.cli._show import open_store_and_redactor, print_message
from outrider.errors import OutboxError
from outrider.operations import pending_messages
from outrider.operations.pending_messages import PendingSelection, RetryResult
from outrider.runtime.command import HelpfulGroup

COLUMNS = {
    "id": "id",
    "enqueued": "created_at",
    "type": "event_type",
    "state": "state",
    "next attempt": "next_attempt_at",
    "attempts": "attempts",
    "key": "ordering_key",
    "exchange": "exchange",
    "routing key": "routing_key",
    "error": "last_error",
}

which_messages = selection_options(
    click.option("--key", "ordering_key", type=text(), metavar="KEY", help="messages of one ordering key"),
    click.option("--owner", type=click.Choice(["relay", "scheduler"]), help="messages that this service owns"),
    click.option("--due", is_flag=True, help="messages that the scheduler may claim now"),
    click.option("--failed", is_flag=True, help="messages that failed at least once"),
    age="enqueued",
)


@click.group(name="pending", cls=HelpfulGroup, epilog=EXIT_STATUS)
def command() -> None:
    """Show messages that are not delivered yet, or retry them now."""


@command.command(name="list", epilog=EXIT_STATUS)
@which_messages
@limit_option
@json_flag
@database_flags
def list_command(config: str | None, limit: int, as_json: bool, **given: Any) -> None:
    """
    List pending messages, the oldest first.

    Payloads are not shown. States: relay (the relay publishes it), due (the scheduler may claim it), claimed (a
    scheduler publishes it), waiting (for its next attempt), parked (behind an earlier message of its ordering key),
    unsupported (its schema_version is unknown to this version of outrider: it is not sent).

    With --json, each line is one object.
    """
    selection = take_selection(given, PendingSelection)
    with open_store(config, given) as store:
        messages = pending_messages.oldest_first(store, selection, limit=limit)
        print_records(COLUMNS, (message._asdict() for message in messages), as_json=as_json)


@command.command(name="show", epilog=EXIT_STATUS)
@click.argument("ident", metavar="ID", type=message_id)
@payload_flag
@json_flag
@redactor_flags
def show_command(ident: int | str, config: str | None, with_payload: bool, as_json: bool, **flags: object) -> None:
    """Show one message, by its id, event_id or task id. A redactor, if set, redacts the payload."""
    with open_store_and_redactor(config, flags) as (store, redact):
        found = pending_messages.find_with_content(store, PendingSelection(ids=[ident]))
    if found is None:
        raise OutboxError(
            f"message {ident} is not in the outbox: it was delivered, or is a dead letter (see `outrider dead show`)"
        )
    print_message(found[0]._asdict(), found[1], redact, with_payload=with_payload, as_json=as_json)


@command.command(name="retry-now", epilog=EXIT_STATUS)
@which_messages
@all_flag
@click.option("--reset-attempts", is_flag=True, help="set their attempts to 0")
@dry_run_flag
@json_flag
@database_flags
def retry_now_command(
    config: str | None, everything: bool, reset_attempts: bool, dry_run: bool, as_json: bool, **given: Any
) -> None:
    """
    Make messages due for the scheduler now.

    Also messages that the relay owns and delayed messages; --failed selects only messages that failed before.

    Messages that a scheduler has claimed, or that are behind an earlier message of their ordering key, are skipped. A
    message that the relay is publishing at this moment may be delivered twice.
    """
    selection = take_selection(given, PendingSelection, everything=everything)
    with open_store(config, given) as store:
        result = pending_messages.retry_now(store, selection, reset_attempts=reset_attempts, dry_run=dry_run)
    text = ("would be due now: " if dry_run else "due now: ") + _describe(result)
    counts = {"dry_run": dry_run, **result._asdict()}
    print_result([text], counts, missing=selection.missing(sum(result)), as_json=as_json)


def _describe(result: RetryResult) -> str:
    skipped = {
        "claimed by a scheduler": result.claimed,
        "behind an earlier message of their ordering key": result.behind,
        "claimed or delivered meanwhile": result.busy,
    }
    reasons = ", ".join(f"{number} {why}" for why, number in skipped.items() if number)
    return f"{result.due}" + (f"; skipped: {reasons}" if reasons else "")
