"""
`outrider replay`: publish events of the event log, or delivered messages of the archive, once more.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from uuid import UUID, uuid4

import click

from outrider.cli._options import (
    EXIT_STATUS,
    all_flag,
    database_flags,
    dry_run_flag,
    duration_or_time,
    json_flag,
    open_store,
    rate_option,
    text,
    type_option,
)
from outrider.cli._output import print_json, print_line, print_records, progress_bar
from outrider.operations import replay
from outrider.operations.message_selection import LARGEST_ID
from outrider.operations.replay import ReplayableType, ReplaySelection
from outrider.storage.server_time import to_datetime
from outrider.storage.store import Store

COLUMNS = {"type": "event_type", "messages": "messages", "first": "first_at", "last": "last_at"}


@click.command(name="replay", epilog=EXIT_STATUS)
@click.option(
    "--stream",
    type=text(),
    metavar="STREAM",
    help="one stream, such as order:42; with --archive: one ordering key",
)
@click.option(
    "--after", type=click.IntRange(0, LARGEST_ID), metavar="VERSION", help="only later versions of the stream"
)
@type_option
@click.option(
    "--since",
    type=duration_or_time,
    metavar="WHEN",
    help="appended (with --archive: delivered) since: 2h ago, or 2026-01-31T12:00Z",
)
@click.option("--until", type=duration_or_time, metavar="WHEN", help="appended (with --archive: delivered) before")
@all_flag
@click.option("--archive", is_flag=True, help="replay messages of outbox_archive instead of events of streams")
@click.option(
    "--exchange",
    type=text(0, 255),
    metavar="TEXT",
    help="exchange to publish to ('': the default exchange); required for events, because the log does not record it",
)
@click.option(
    "--routing-key",
    type=text(0, 255),
    metavar="TEXT",
    help="default: the event type; with --archive: the original routing key",
)
@click.option(
    "--replay-id",
    type=click.UUID,
    metavar="UUID",
    help="go on with an interrupted replay: consumers with an inbox skip what they have handled of it",
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
    replay_id: UUID | None,
    rate: float | None,
    dry_run: bool,
    as_json: bool,
    **flags: object,
) -> None:
    """
    Publish events or delivered messages once more.

    Events come from the log of event streams, delivered messages (--archive) from the table outbox_archive. They enter
    the outbox as new messages with their old event_id and the headers `replayed` and `replay_id`, in their old order.
    Events appended and messages delivered after the start are not replayed. Running it twice publishes everything
    twice; a consumer with an inbox handles each event once for each replay_id.
    """
    if not everything and stream is None and event_type is None and since is None and until is None:
        raise click.UsageError("select what to replay: --stream, --type, --since or --until; or give --all")
    if after is not None and (stream is None or archive):
        raise click.UsageError("--after needs --stream, and cannot be used with --archive")
    if exchange is None and not archive:
        raise click.UsageError("give --exchange: the event log does not record the exchange of an event")
    with open_store(config, flags) as store:
        selection = ReplaySelection(
            archive=archive,
            stream=stream,
            event_type=event_type,
            since=_to_datetime(store, since),
            until=_to_datetime(store, until),
            after=after or 0,
        )
        if dry_run:
            _preview(replay.count_by_type(store, selection), as_json=as_json)
            return
        replay_id = replay_id or uuid4()
        # First, so that it is known if the replay is interrupted.
        click.echo(f"replay {replay_id}", err=True)
        with progress_bar("replaying", lambda: _total(replay.count_by_type(store, selection))) as progress:
            replayed = replay.replay(
                store,
                selection,
                exchange=exchange,
                routing_key=routing_key,
                replay_id=replay_id,
                rate=rate,
                progress=progress,
            )
    if as_json:
        print_json({"replayed": replayed, "replay_id": str(replay_id)})
    else:
        print_line(f"replayed {replayed}")


def _preview(found: list[ReplayableType], *, as_json: bool) -> None:
    if as_json:
        print_json({"dry_run": True, "selected": _total(found), "types": [kind._asdict() for kind in found]})
        return
    print_line(f"would replay {_total(found)}")
    if found:
        print_records(COLUMNS, (kind._asdict() for kind in found), as_json=False)


def _total(found: list[ReplayableType]) -> int:
    return sum(kind.messages for kind in found)


def _to_datetime(store: Store, given: float | datetime | None) -> datetime | None:
    """A duration counts back from the database's clock."""
    if given is None or isinstance(given, datetime):
        return given
    return to_datetime(store.server_clock()) - timedelta(seconds=given)
