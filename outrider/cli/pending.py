"""
`outrider pending`: look at messages that wait in the outbox, and have them tried now.
"""

from __future__ import annotations

from itertools import islice
from typing import Any

import click

from outrider.cli._options import (
    EXIT_STATUS,
    all_flag,
    common_conditions,
    database_flags,
    dry_run_flag,
    json_flag,
    limit_option,
    open_store,
    payload_flag,
    redactor_flags,
    require_selection,
    row_or_event_id,
    selection_options,
    text,
)
from outrider.cli._output import print_json, print_records
from outrider.cli._show import Found, show
from outrider.errors import OutboxError
from outrider.operations import pending
from outrider.operations.pending import PendingSelection, Retried
from outrider.storage.store import Store

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
    click.option("--key", "ordering_key", type=text(), metavar="KEY", help="of one ordering key"),
    click.option("--owner", type=click.Choice(["relay", "scheduler"]), help="whose they are"),
    click.option("--due", is_flag=True, help="which the scheduler may take now"),
    click.option("--failed", is_flag=True, help="which were refused before"),
    age="enqueued",
)


@click.group(name="pending", epilog=EXIT_STATUS)
def command() -> None:
    """Look at messages that wait in the outbox, and have them tried now."""


@command.command(name="list", epilog=EXIT_STATUS)
@which_messages
@limit_option()
@json_flag
@database_flags
def list_command(config: str | None, limit: int, as_json: bool, **given: Any) -> None:
    """
    Messages that are not delivered yet, the oldest first. Payloads are not shown.

    State: relay (the relay is at it), due (the scheduler takes it next), claimed (a scheduler is at it), waiting (until
    its next attempt), parked (behind an earlier message of its key). JSON: an object a line.
    """
    selection, flags = _split(given)
    with open_store(config, flags) as store:
        messages = pending.oldest_first(store, selection, batch_size=min(limit, pending.BATCH_SIZE))
        print_records(COLUMNS, (message._asdict() for message in islice(messages, limit)), as_json=as_json)


@command.command(name="show", epilog=EXIT_STATUS)
@click.argument("ident", metavar="ID", type=row_or_event_id)
@payload_flag
@json_flag
@redactor_flags
def show_command(ident: int | str, config: str | None, with_payload: bool, as_json: bool, **flags: object) -> None:
    """One message with all its fields, by its id or event_id. The payload is shown as the redactor leaves it."""

    def look_up(store: Store) -> Found | None:
        selection = PendingSelection(ids=[ident]) if isinstance(ident, int) else PendingSelection(event_ids=[ident])
        found = pending.find(store, selection)
        return found and (found[0]._asdict(), found[1])

    show(
        look_up,
        f"the outbox does not hold {ident}: it was delivered, or is a dead letter (see `outrider dead show`)",
        config=config,
        flags=flags,
        with_payload=with_payload,
        as_json=as_json,
    )


@command.command(name="retry-now", epilog=EXIT_STATUS)
@which_messages
@all_flag
@click.option("--reset-attempts", is_flag=True, help="as if they had never been tried")
@dry_run_flag
@json_flag
@database_flags
def retry_now_command(
    config: str | None, everything: bool, reset_attempts: bool, dry_run: bool, as_json: bool, **given: Any
) -> None:
    """
    Make messages due for the scheduler now, whatever they wait for: a backoff, the relay, or the time they were to be
    delivered at (--failed selects only those that were refused).

    What a scheduler holds, or waits behind an earlier message of its key, is left alone. A message that the relay is
    sending at this moment may be delivered twice.
    """
    selection, flags = _split(given, everything=everything)
    with open_store(config, flags) as store:
        result = pending.retry_now(store, selection, reset_attempts=reset_attempts, dry_run=dry_run)
    missing = max(0, len({*(selection.ids or ()), *(selection.event_ids or ())}) - sum(result))
    if as_json:
        print_json({"dry_run": dry_run, **result._asdict(), "missing": missing})
    else:
        click.echo(("would be due now: " if dry_run else "due now: ") + _describe(result))
    if missing:
        raise OutboxError(f"{missing} of the messages named are not among the pending ones selected")


def _describe(result: Retried) -> str:
    skipped = {
        "held by a scheduler": result.claimed,
        "behind an earlier message of their key": result.behind,
        "taken or delivered meanwhile": result.busy,
    }
    reasons = ", ".join(f"{number} {why}" for why, number in skipped.items() if number)
    return f"{result.due}" + (f"; left alone: {reasons}" if reasons else "")


def _split(given: dict[str, Any], *, everything: bool = True) -> tuple[PendingSelection, dict[str, Any]]:
    """The selection, and the settings' flags, of what click gives a command."""
    names = ("idents", "event_type", "ordering_key", "owner", "due", "failed", "older_than", "newer_than")
    selected = {name: given.pop(name) for name in names}
    require_selection(selected, everything)
    own = {name: selected[name] for name in ("ordering_key", "owner", "due", "failed")}
    return PendingSelection(**common_conditions(selected), **own), given
