"""
`outrider replay`: send events of the log, or delivered messages of the archive, once more.
"""

from __future__ import annotations

from datetime import datetime, timedelta

import click

from outrider.cli._options import (
    EXIT_STATUS,
    all_flag,
    database_flags,
    dry_run_flag,
    duration_or_instant,
    json_flag,
    open_store,
    rate_option,
    text,
)
from outrider.cli._output import print_json, print_records, progress_bar
from outrider.operations import replay
from outrider.operations.replay import Replayable, ReplaySelection
from outrider.operations.selection import LARGEST_ID
from outrider.storage.message import moment
from outrider.storage.store import Store

COLUMNS = {"type": "event_type", "messages": "messages", "first": "first_at", "last": "last_at"}


@click.command(name="replay", epilog=EXIT_STATUS)
@click.option(
    "--stream",
    type=text(),
    metavar="STREAM",
    help="of one stream, such as order:42; with --archive: of one ordering key",
)
@click.option("--after", type=click.IntRange(0, LARGEST_ID), metavar="VERSION", help="after this version of the stream")
@click.option("--type", "event_type", type=text(), metavar="GLOB", help="event types, such as 'order.*'")
@click.option(
    "--since",
    type=duration_or_instant,
    metavar="WHEN",
    help="appended (with --archive: delivered) since then: 2h, 2026-01-31T12:00Z",
)
@click.option(
    "--until", type=duration_or_instant, metavar="WHEN", help="appended (with --archive: delivered) before then"
)
@all_flag
@click.option("--archive", is_flag=True, help="messages of outbox_archive instead of events of streams")
@click.option(
    "--exchange",
    type=text(0, 255),
    metavar="TEXT",
    help="where they go; must be given for events: the log does not know where they went ('': the default exchange)",
)
@click.option(
    "--routing-key", type=text(0, 255), metavar="TEXT", help="default: the event type; with --archive: as it was"
)
@rate_option
@dry_run_flag
@json_flag
@database_flags
def command(
    config: str | None,
    stream: str | None,
    after: int | None,
    event_type: str | None,
    since: float | datetime | None,
    until: float | datetime | None,
    everything: bool,
    archive: bool,
    exchange: str | None,
    routing_key: str | None,
    rate: float | None,
    dry_run: bool,
    as_json: bool,
    **flags: object,
) -> None:
    """
    Send events of the log, or delivered messages of the archive, once more.

    They enter the outbox as new messages with their old event_id and the header `replayed`, in their old order. What is
    appended or delivered meanwhile is not replayed. Do not run it twice for the same selection: it sends twice.
    """
    if not everything and stream is None and event_type is None and since is None and until is None:
        raise click.UsageError("say what to replay: --stream, --type, --since or --until; or --all")
    if after is not None and (stream is None or archive):
        raise click.UsageError("--after is a version of a --stream of the log")
    if exchange is None and not (archive or dry_run):
        raise click.UsageError("say --exchange: the log does not know where its events went")
    with open_store(config, flags) as store:
        selection = ReplaySelection(
            archive=archive,
            stream=stream,
            event_type=event_type,
            since=_instant(store, since),
            until=_instant(store, until),
            after=after or 0,
        )
        if dry_run:
            _preview(replay.survey(store, selection), as_json)
            return
        with progress_bar("replaying", lambda: _total(replay.survey(store, selection))) as progress:
            replayed = replay.replay(
                store, selection, exchange=exchange, routing_key=routing_key, rate=rate, progress=progress
            )
    if as_json:
        print_json({"replayed": replayed})
    else:
        click.echo(f"replayed {replayed}")


def _preview(found: list[Replayable], as_json: bool) -> None:
    if as_json:
        print_json({"dry_run": True, "selected": _total(found), "types": [kind._asdict() for kind in found]})
        return
    click.echo(f"would replay {_total(found)}")
    if found:
        print_records(COLUMNS, (kind._asdict() for kind in found), as_json=False)


def _total(found: list[Replayable]) -> int:
    return sum(kind.messages for kind in found)


def _instant(store: Store, given: float | datetime | None) -> datetime | None:
    """A duration is so long ago, by the database's clock."""
    if given is None or isinstance(given, datetime):
        return given
    return moment(store.server_clock()) - timedelta(seconds=given)
