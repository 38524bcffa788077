"""
`outrider events`: operate the log of event streams.
"""

from __future__ import annotations

from datetime import timedelta

import click

from outrider.cli._options import (
    EXIT_STATUS,
    database_flags,
    dry_run_flag,
    json_flag,
    older_than_option,
    open_store,
    text,
    yes_flag,
)
from outrider.cli._output import confirm, print_json, print_line
from outrider.operations.event_log import start_epoch
from outrider.runtime.command import HelpfulGroup


@click.group(name="events", cls=HelpfulGroup, epilog=EXIT_STATUS)
def command() -> None:
    """Operate the log of event streams."""


@command.command(name="new-epoch", epilog=EXIT_STATUS)
@yes_flag
@json_flag
@database_flags
def new_epoch(config: str | None, yes: bool, as_json: bool, **flags: object) -> None:
    """
    Begin a new epoch of the log.

    Events that are appended from now on come after all others. Needed once after the log was moved to another
    server: restored from a dump, copied by logical replication, or upgraded with pg_upgrade. `outrider doctor` says
    so. Needless epochs do no harm. Appends wait for an instant.
    """
    with open_store(config, flags) as store:
        confirm(lambda: f"Begin a new epoch of the event log in the schema {store.queries.schema}?", yes=yes)
        started = start_epoch(store)
    if as_json:
        print_json(started._asdict())
        return
    print_line(f"epoch {started.epoch} has begun")
    if started.moved:
        print_line(f"{started.moved} events that were appended since the log was restored are part of it")


@command.command(name="delete", epilog=EXIT_STATUS)
@older_than_option(required=True, help="appended longer ago, such as 3650d")
@click.option("--category", type=text(), metavar="NAME", help="only streams of this category")
@yes_flag
@dry_run_flag
@json_flag
@database_flags
def delete(
    config: str | None,
    older_than_seconds: float,
    category: str | None,
    yes: bool,
    dry_run: bool,
    as_json: bool,
    **flags: object,
) -> None:
    """
    Delete old events of the log, for ever.

    The log is the truth of an event-sourced application: what is deleted can be neither loaded, read, replayed nor
    projected again, and a stream can only be loaded from a snapshot that is newer. The newest event of each stream is
    kept. Needs the role that owns the tables.
    """
    older_than = timedelta(seconds=older_than_seconds)
    with open_store(config, flags) as store:
        found = store.count_deletable_events(older_than=older_than, category=category)
        deleted = 0
        if not dry_run and found:
            confirm(lambda: f"Delete {found} events of the log for ever?", yes=yes)
            while batch := store.delete_events(older_than=older_than, category=category, batch_size=1000):
                deleted += batch
    if as_json:
        print_json({"dry_run": dry_run, "selected": found, "deleted": deleted})
    else:
        print_line(f"would delete {found}" if dry_run else f"deleted {deleted}")
