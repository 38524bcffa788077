"""
`outrider status`: the state of the outbox, once or repeatedly. Reads only, at a bounded cost (see outbox_state.py).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress

import click

from outrider.cli._options import Number
from outrider.cli._output import print_json
from outrider.errors import DatabaseError
from outrider.operations.outbox_state import OutboxState, as_document, connect_and_read_state
from outrider.runtime.command import settings_flags
from outrider.settings.database import DatabaseSettings
from outrider.settings.loading import load_settings

WATCH_SECONDS = 2.0


@click.command(name="status")
@settings_flags(DatabaseSettings, only=["database_url", "schema", "publication", "slot"])
@click.option(
    "--watch",
    "watch_seconds",
    type=Number(min=0.1, max=3600),
    is_flag=False,
    flag_value=WATCH_SECONDS,
    metavar="[SECONDS]",
    help=f"repeat every so many seconds (default: {WATCH_SECONDS:g}) until Ctrl-C",
)
@click.option("--json", "as_json", is_flag=True, help="print a JSON object; with --watch one per line")
def command(config: str | None, watch_seconds: float | None, as_json: bool, **flags: object) -> None:
    """
    Show the state of the outbox.

    Shows the number of messages by state, the running services, the replication slot and the publication.

    Counts are exact below 10,000 and lower bounds or estimates above, so that the command is cheap for a large outbox.
    It needs only SELECT on the tables (the observer role of sql/roles.sql), and names what the role may not read.

    The keys of --json: at, database, schema, timeline, exact_below, queues (pending, due, with_relay, claimed, delayed,
    backing_off, parked, parked_keys, retrying, unsupported, oldest_seconds, overdue_seconds), dead (total, by_reason),
    archive (total), workers, slot, publication, unseen. The services' /status shows the same as `state`.

    Exit status: 0, also after Ctrl-C; 1 an error of the database, or a role that may read neither messages nor dead
    letters; 2 wrong settings or usage.
    """
    settings = load_settings(DatabaseSettings, flags, config_file=config)
    if watch_seconds is None:
        state = connect_and_read_state(settings)
        _print(state, as_json=as_json)
        if state.blind:
            raise DatabaseError(
                "this role may read neither messages nor dead letters: use the observer of sql/roles.sql"
            )
        return
    with suppress(KeyboardInterrupt):
        _watch(_read_repeatedly(settings, watch_seconds), as_json=as_json)


def _read_repeatedly(settings: DatabaseSettings, seconds: float) -> Iterator[OutboxState | DatabaseError]:
    """An error of the first read is raised, a later one is yielded."""
    yield connect_and_read_state(settings)
    while True:
        time.sleep(seconds)
        try:
            yield connect_and_read_state(settings)
        except DatabaseError as error:
            yield error


def _print(state: OutboxState | DatabaseError, *, as_json: bool) -> None:
    if as_json:
        document = {"error": str(state)} if isinstance(state, DatabaseError) else as_document(state)
        print_json(document)
        return
    from rich.console import Console

    from outrider.operations.outbox_state_tables import as_tables

    Console(highlight=False).print(as_tables(state))


def _watch(states: Iterator[OutboxState | DatabaseError], *, as_json: bool) -> None:
    from rich.console import Console
    from rich.live import Live

    from outrider.operations.outbox_state_tables import as_tables

    console = Console(highlight=False)
    if as_json or not console.is_terminal:
        for state in states:
            _print(state, as_json=as_json)
        return
    first = next(states)
    with Live(as_tables(first), console=console, auto_refresh=False, screen=True) as live:
        for state in states:
            live.update(as_tables(state), refresh=True)
