"""
`outrider dead`: look at messages that were given up, and replay or delete them.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

import click

from outrider.cli._options import (
    EXIT_STATUS,
    all_flag,
    common_conditions,
    database_flags,
    dry_run_flag,
    duration,
    json_flag,
    limit_option,
    open_store,
    payload_flag,
    rate_option,
    redactor_flags,
    require_selection,
    row_or_event_id,
    selection_options,
    text,
)
from outrider.cli._output import ask, print_json, print_records, progress_bar
from outrider.cli._show import Found, show
from outrider.errors import OutboxError
from outrider.operations import dead_letters
from outrider.operations.dead_letters import DeadLetterSelection, DeadLetterSummary
from outrider.storage.fingerprint import LENGTH
from outrider.storage.store import Store

SHOWN = 20
"""Messages that a dry run names."""

LETTER_COLUMNS = {
    "id": "id",
    "died": "died_at",
    "type": "event_type",
    "reason": "reason",
    "attempts": "attempts",
    "exchange": "exchange",
    "routing key": "routing_key",
    "error": "last_error",
}
GROUP_COLUMNS = {
    "fingerprint": "fingerprint",
    "messages": "messages",
    "reason": "reason",
    "type": "event_type",
    "first": "first_died_at",
    "last": "last_died_at",
    "example": "example_id",
    "error": "error",
}


def _reason(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    reason = value.replace("-", " ") if value else None
    if reason not in (None, *dead_letters.REASONS):
        raise click.BadParameter(f"is one of {', '.join(dead_letters.REASONS)}", ctx, param)
    return reason


def _fingerprint(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    if value is not None and (len(value) != LENGTH or value.strip("0123456789abcdef")):
        raise click.BadParameter(f"is {LENGTH} hexadecimal digits, as `outrider dead list --grouped` shows", ctx, param)
    return value


which_dead_letters = selection_options(
    click.option("--reason", callback=_reason, help=f"why they died: {', '.join(dead_letters.REASONS)}"),
    click.option(
        "--fingerprint", callback=_fingerprint, help="one kind of failure: see `outrider dead list --grouped`"
    ),
    age="died",
)


@click.group(name="dead", epilog=EXIT_STATUS)
def command() -> None:
    """Look at messages that were given up, and replay or delete them."""


@command.command(name="list", epilog=EXIT_STATUS)
@which_dead_letters
@click.option("--grouped", is_flag=True, help="what went wrong, how often, and a fingerprint to select it by")
@limit_option()
@json_flag
@database_flags
def list_command(config: str | None, grouped: bool, limit: int, as_json: bool, **given: Any) -> None:
    """
    Dead letters, the newest first. Payloads are not shown.

    With --grouped, failures that differ only in numbers, ids and quoted values are one line. JSON: an object a line.
    """
    selection, flags = _split(given)
    with open_store(config, flags) as store:
        if grouped:
            groups = dead_letters.groups(store, selection)[:limit]
            print_records(GROUP_COLUMNS, (group._asdict() for group in groups), as_json=as_json)
        else:
            letters = dead_letters.newest_first(store, selection, batch_size=min(limit, dead_letters.BATCH_SIZE))
            _print_letters(islice(letters, limit), as_json)


@command.command(name="show", epilog=EXIT_STATUS)
@click.argument("ident", metavar="ID", type=row_or_event_id)
@payload_flag
@json_flag
@redactor_flags
def show_command(ident: int | str, config: str | None, with_payload: bool, as_json: bool, **flags: object) -> None:
    """One dead letter with all its fields, by its id or event_id. The payload is shown as the redactor leaves it."""

    def look_up(store: Store) -> Found | None:
        found = dead_letters.find(store, _only(ident))
        return found and (_record(found[0]), found[1])

    show(
        look_up,
        f"there is no dead letter {ident}: see `outrider dead list`",
        config=config,
        flags=flags,
        with_payload=with_payload,
        as_json=as_json,
    )


@command.command(name="replay", epilog=EXIT_STATUS)
@which_dead_letters
@all_flag
@rate_option
@dry_run_flag
@json_flag
@database_flags
def replay_command(
    config: str | None, everything: bool, rate: float | None, dry_run: bool, as_json: bool, **given: Any
) -> None:
    """
    Put dead letters back into the outbox, in their old order, with no attempt spent.

    A message whose dedup_key is pending again stays a dead letter. Can be interrupted and run again.
    """
    selection, flags = _split(given, everything=everything)
    with open_store(config, flags) as store:
        if dry_run:
            _preview(store, selection, "would replay", as_json)
            return
        with progress_bar("replaying", lambda: dead_letters.count(store, selection)) as progress:
            result = dead_letters.replay(store, selection, rate=rate, progress=progress)
    missing = _missing(selection, sum(result))
    if as_json:
        print_json({**result._asdict(), "missing": missing})
    else:
        kept = f", kept {result.kept} (a message with the same dedup_key is pending)" if result.kept else ""
        click.echo(f"replayed {result.replayed}{kept}")
    _complain(missing)


@command.command(name="discard", epilog=EXIT_STATUS)
@which_dead_letters
@all_flag
@click.option("--yes", is_flag=True, help="do not ask")
@dry_run_flag
@json_flag
@database_flags
def discard_command(
    config: str | None, everything: bool, yes: bool, dry_run: bool, as_json: bool, **given: Any
) -> None:
    """Delete dead letters for good. Asks first."""
    selection, flags = _split(given, everything=everything)
    _discard(selection, flags, config=config, yes=yes, dry_run=dry_run, as_json=as_json)


@command.command(name="purge", epilog=EXIT_STATUS)
@click.option("--older-than", type=duration, required=True, metavar="DURATION", help="died longer ago, such as 30d")
@click.option("--type", "event_type", type=text(), metavar="GLOB", help="event types, such as 'order.*'")
@click.option("--yes", is_flag=True, help="do not ask")
@dry_run_flag
@json_flag
@database_flags
def purge_command(
    config: str | None,
    older_than: float,
    event_type: str | None,
    yes: bool,
    dry_run: bool,
    as_json: bool,
    **flags: object,
) -> None:
    """Delete old dead letters for good. Asks first. The scheduler does it by itself: dead_letter_retention_seconds."""
    selection = DeadLetterSelection(event_type=event_type, older_than_seconds=older_than)
    _discard(selection, flags, config=config, yes=yes, dry_run=dry_run, as_json=as_json)


def _discard(
    selection: DeadLetterSelection,
    flags: dict[str, Any],
    *,
    config: str | None,
    yes: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    with open_store(config, flags) as store:
        if dry_run:
            _preview(store, selection, "would discard", as_json)
            return
        ask(lambda: f"Delete {dead_letters.count(store, selection)} dead letters for good?", yes=yes)
        with progress_bar("discarding", lambda: dead_letters.count(store, selection)) as progress:
            discarded = dead_letters.discard(store, selection, progress=progress)
    missing = _missing(selection, discarded)
    if as_json:
        print_json({"discarded": discarded, "missing": missing})
    else:
        click.echo(f"discarded {discarded}")
    _complain(missing)


def _preview(store: Store, selection: DeadLetterSelection, verb: str, as_json: bool) -> None:
    selected = dead_letters.count(store, selection)
    letters = dead_letters.browse(store, selection, at_most=SHOWN)
    if as_json:
        print_json({"dry_run": True, "selected": selected, "newest": [_record(letter) for letter in letters]})
        return
    click.echo(f"{verb} {selected}" + (f"; the newest {SHOWN}:" if selected > SHOWN else ""))
    if letters:
        _print_letters(letters, as_json)


def _print_letters(letters: Iterable[DeadLetterSummary], as_json: bool) -> None:
    print_records(LETTER_COLUMNS, map(_record, letters), as_json=as_json)


def _record(letter: DeadLetterSummary) -> dict[str, Any]:
    return {**letter._asdict(), "fingerprint": letter.fingerprint}


def _only(ident: int | str) -> DeadLetterSelection:
    return DeadLetterSelection(ids=[ident]) if isinstance(ident, int) else DeadLetterSelection(event_ids=[ident])


def _split(given: dict[str, Any], *, everything: bool = True) -> tuple[DeadLetterSelection, dict[str, Any]]:
    """The selection, and the settings' flags, of what click gives a command."""
    names = ("idents", "event_type", "reason", "fingerprint", "older_than", "newer_than")
    selected = {name: given.pop(name) for name in names}
    require_selection(selected, everything)
    conditions = common_conditions(selected)
    return DeadLetterSelection(**conditions, reason=selected["reason"], fingerprint=selected["fingerprint"]), given


def _missing(selection: DeadLetterSelection, found: int) -> int:
    """How many of the messages that were named are not there (or not selected by the other conditions)."""
    named = {*(selection.ids or ()), *(selection.event_ids or ())}
    return max(0, len(named) - found)


def _complain(missing: int) -> None:
    if missing:
        raise OutboxError(f"{missing} of the messages named are not among the dead letters selected")
