"""
`outrider dead`: show dead letters, and replay or delete them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import click

from outrider.cli._options import (
    EXIT_STATUS,
    all_flag,
    database_flags,
    dry_run_flag,
    duration,
    json_flag,
    limit_option,
    message_id,
    older_than_option,
    open_store,
    payload_flag,
    rate_option,
    redactor_flags,
    selection_options,
    take_selection,
    type_option,
    yes_flag,
)
from outrider.cli._output import confirm, print_json, print_line, print_records, print_result, progress_bar
from outrider.cli._show import open_store_and_redactor, print_message
from outrider.errors import OutboxError
from outrider.operations import dead_letters
from outrider.operations.dead_letters import DeadLetterSelection, DeadLetterSummary
from outrider.runtime.command import HelpfulGroup
from outrider.storage.decision import DEAD_LETTER_REASONS
from outrider.storage.fingerprint import LENGTH
from outrider.storage.store import Store

DRY_RUN_LIMIT = 20
"""Messages that a dry run lists."""

DEAD_LETTER_COLUMNS = {
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
    if reason not in (None, *DEAD_LETTER_REASONS):
        raise click.BadParameter(f"must be one of {', '.join(DEAD_LETTER_REASONS)}", ctx, param)
    return reason


def _fingerprint(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    if value is not None and (len(value) != LENGTH or value.strip("0123456789abcdef")):
        raise click.BadParameter(f"must be {LENGTH} hexadecimal digits: see `outrider dead list --grouped`", ctx, param)
    return value


which_dead_letters = selection_options(
    click.option("--reason", callback=_reason, help=f"why they were buried: {', '.join(DEAD_LETTER_REASONS)}"),
    click.option("--fingerprint", callback=_fingerprint, help="kind of failure: see `outrider dead list --grouped`"),
    click.option(
        "--created-older-than",
        "created_older_than_seconds",
        type=duration,
        metavar="DURATION",
        help="enqueued longer ago, such as 90d",
    ),
    age="buried",
)


@click.group(name="dead", cls=HelpfulGroup, epilog=EXIT_STATUS)
def command() -> None:
    """
    Show, replay or delete dead letters.

    These are messages that could not be published. The dead letters of consumers are in the broker: see `outrider dlq`.
    """


@command.command(name="list", epilog=EXIT_STATUS)
@which_dead_letters
@click.option(
    "--grouped", is_flag=True, help="group by kind of failure, with a count and a fingerprint to select it by"
)
@limit_option
@json_flag
@database_flags
def list_command(config: str | None, grouped: bool, limit: int, as_json: bool, **given: Any) -> None:
    """
    List dead letters, the newest first.

    Payloads are not shown. With --grouped, failures that differ only in numbers, ids and quoted values are one line.
    With --json, each line is one object.
    """
    selection = take_selection(given, DeadLetterSelection)
    with open_store(config, given) as store:
        if grouped:
            groups = dead_letters.group_by_failure(store, selection)[:limit]
            print_records(GROUP_COLUMNS, (group._asdict() for group in groups), as_json=as_json)
        else:
            _print_dead_letters(dead_letters.newest_first(store, selection, limit=limit), as_json)


@command.command(name="show", epilog=EXIT_STATUS)
@click.argument("ident", metavar="ID", type=message_id)
@payload_flag
@json_flag
@redactor_flags
def show_command(ident: int | str, config: str | None, with_payload: bool, as_json: bool, **flags: object) -> None:
    """Show one dead letter, by its id, event_id or task id. A redactor, if set, redacts the payload."""
    with open_store_and_redactor(config, flags) as (store, redact):
        found = dead_letters.find_with_content(store, DeadLetterSelection(ids=[ident]))
    if found is None:
        raise OutboxError(f"there is no dead letter {ident}: see `outrider dead list`")
    print_message(_record(found[0]), found[1], redact, with_payload=with_payload, as_json=as_json)


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
    Move dead letters back into the outbox.

    They keep their order and start with no attempts spent. A message that cannot be moved stays a dead letter, such as
    one whose dedup_key is pending again; the first 20 of them are listed. The command can be interrupted and run again.
    """
    selection = take_selection(given, DeadLetterSelection, everything=everything)
    with open_store(config, given) as store:
        if dry_run:
            _preview(store, selection, "would replay", as_json)
            return
        with progress_bar("replaying", lambda: dead_letters.count(store, selection)) as progress:
            result = dead_letters.replay(store, selection, rate=rate, progress=progress)
    skipped = [f"  {each.id} (dedup_key {each.dedup_key}): {each.why}" for each in result.skipped]
    text = [", ".join(filter(None, (f"replayed {result.replayed}", result.kept_text))), *skipped]
    document = {**result._asdict(), "skipped": [each._asdict() for each in result.skipped]}
    missing = selection.missing(result.replayed + result.kept)
    print_result(text, document, missing=missing, as_json=as_json)


@command.command(name="discard", epilog=EXIT_STATUS)
@which_dead_letters
@all_flag
@yes_flag
@dry_run_flag
@json_flag
@database_flags
def discard_command(everything: bool, **given: Any) -> None:
    """Delete dead letters for good. Asks for confirmation."""
    selection = take_selection(given, DeadLetterSelection, everything=everything)
    _discard(selection, **given)


@command.command(name="purge", epilog=EXIT_STATUS)
@older_than_option(required=True, help="buried longer ago, such as 30d")
@type_option
@yes_flag
@dry_run_flag
@json_flag
@database_flags
def purge_command(older_than_seconds: float, event_type: str | None, **options: Any) -> None:
    """
    Delete old dead letters for good. Asks for confirmation.

    The scheduler can do this regularly: see its setting dead_letter_retention_seconds.
    """
    _discard(DeadLetterSelection(event_type=event_type, older_than_seconds=older_than_seconds), **options)


def _discard(
    selection: DeadLetterSelection, *, config: str | None, yes: bool, dry_run: bool, as_json: bool, **flags: object
) -> None:
    with open_store(config, flags) as store:
        if dry_run:
            _preview(store, selection, "would discard", as_json)
            return
        confirm(lambda: f"Delete {dead_letters.count(store, selection)} dead letters for good?", yes=yes)
        with progress_bar("discarding", lambda: dead_letters.count(store, selection)) as progress:
            discarded = dead_letters.discard(store, selection, progress=progress)
    counts = {"discarded": discarded}
    print_result([f"discarded {discarded}"], counts, missing=selection.missing(discarded), as_json=as_json)


def _preview(store: Store, selection: DeadLetterSelection, verb: str, as_json: bool) -> None:
    selected = dead_letters.count(store, selection)
    letters = list(dead_letters.newest_first(store, selection, limit=DRY_RUN_LIMIT))
    if as_json:
        print_json({"dry_run": True, "selected": selected, "newest": [_record(letter) for letter in letters]})
        return
    print_line(f"{verb} {selected}" + (f"; the newest {DRY_RUN_LIMIT}:" if selected > DRY_RUN_LIMIT else ""))
    if letters:
        _print_dead_letters(letters, as_json)


def _print_dead_letters(letters: Iterable[DeadLetterSummary], as_json: bool) -> None:
    print_records(DEAD_LETTER_COLUMNS, map(_record, letters), as_json=as_json)


def _record(letter: DeadLetterSummary) -> dict[str, Any]:
    return {**letter._asdict(), "fingerprint": letter.fingerprint}
