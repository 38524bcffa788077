"""
`outrider status`: what waits, who works, how the slot is doing. Reads only, at a bounded cost (see outrider/operations/state.py).
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from outrider.cli._options import Number
from outrider.errors import DatabaseError
from outrider.operations.state import State, as_document, read_state
from outrider.runtime.command import settings_flags
from outrider.settings.loading import load_settings
from outrider.settings.models import DatabaseSettings
from outrider.storage.store import Store, connect

if TYPE_CHECKING:
    import psycopg

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
    help=f"look again every so many seconds (default: {WATCH_SECONDS:g}) until Ctrl-C",
)
@click.option("--json", "as_json", is_flag=True, help="print a JSON object, with --watch one in each line")
def command(config: str | None, watch_seconds: float | None, as_json: bool, **flags: object) -> None:
    """
    Show what waits in the outbox, which services live, and how the replication slot is doing.

    Counts are exact below 10,000 and estimates beyond, so that looking costs little however full the outbox is. SELECT
    on the tables is enough (the observer role of sql/roles.sql); what the role may not see is named as such.

    The keys of --json: at, database, schema, exact_below, queues (pending, due, with_relay, claimed, delayed, retrying,
    parked, blocked_keys, oldest_seconds, overdue_seconds), dead (total, by_reason), archive (total), workers, slot,
    publication, unseen. The services' /status shows the same as `state`.

    Exit status: 0, also after Ctrl-C; 1 the database cannot be asked; 2 wrong settings or usage.
    """
    settings = load_settings(DatabaseSettings, flags, config_file=config)
    pictures = _Pictures(settings)
    try:
        if watch_seconds is None:
            _print(pictures.take(), as_json=as_json)
        else:
            _watch(pictures.every(watch_seconds), as_json=as_json)
    except KeyboardInterrupt:
        if watch_seconds is None:
            raise
    finally:
        pictures.close()


class _Pictures:
    """Pictures over one connection, which is opened again when it was lost."""

    def __init__(self, settings: DatabaseSettings) -> None:
        self._settings = settings
        self._connection: psycopg.Connection[Any] | None = None

    def take(self) -> State:
        settings = self._settings
        try:
            if self._connection is None:
                self._connection = connect(settings.database_dsn, application_name="outrider status")
            store = Store(self._connection, settings.schema_name)
            return read_state(store, publication=settings.publication, slot=settings.slot)
        except DatabaseError:
            self.close()
            raise

    def every(self, seconds: float) -> Iterator[State | DatabaseError]:
        """For ever. The first must succeed: a wrong address is not worth watching."""
        yield self.take()
        while True:
            time.sleep(seconds)
            try:
                yield self.take()
            except DatabaseError as error:
                yield error

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _print(picture: State | DatabaseError, *, as_json: bool) -> None:
    if as_json:
        document = {"error": str(picture)} if isinstance(picture, DatabaseError) else as_document(picture)
        click.echo(json.dumps(document))
        return
    from rich.console import Console

    from outrider.operations.state_tables import as_tables

    Console(highlight=False).print(as_tables(picture))


def _watch(pictures: Iterator[State | DatabaseError], *, as_json: bool) -> None:
    from rich.console import Console
    from rich.live import Live

    from outrider.operations.state_tables import as_tables

    console = Console(highlight=False)
    if as_json or not console.is_terminal:
        for picture in pictures:
            _print(picture, as_json=as_json)
        return
    first = next(pictures)
    with Live(as_tables(first), console=console, auto_refresh=False, screen=True) as live:
        for picture in pictures:
            live.update(as_tables(picture), refresh=True)
