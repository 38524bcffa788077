"""
`outrider teardown`: drop the slot and the publication; with --drop-tables also the tables.
"""

from __future__ import annotations

import click

from outrider.cli._output import confirm
from outrider.cli._setup_steps import run_steps
from outrider.errors import SetupError
from outrider.operations.setup.facts import kept_rows, read_facts
from outrider.operations.setup.plan import Target, as_script, plan_teardown
from outrider.runtime.command import settings_flags
from outrider.settings.database import DatabaseSettings
from outrider.settings.loading import load_settings
from outrider.storage.connection import connect
from outrider.storage.store import Store


@click.command(name="teardown")
@settings_flags(DatabaseSettings, only=["database_url", "schema", "publication", "slot"])
@click.option("--drop-tables", is_flag=True, help="also drop the tables")
@click.option("--yes", is_flag=True, help="do not ask for confirmation, and drop tables that still have rows")
@click.option("--dry-run", is_flag=True, help="print the SQL, for psql, and change nothing")
def command(config: str | None, drop_tables: bool, yes: bool, dry_run: bool, **flags: object) -> None:
    """Drop the slot and the publication. With --drop-tables, also the tables."""
    settings = load_settings(DatabaseSettings, flags, config_file=config)
    target = Target(settings.schema_name, settings.publication, settings.slot)
    with connect(settings.database_dsn, application_name="outrider teardown") as connection:
        store = Store(connection, target.schema)
        facts = read_facts(store, publication=target.publication, slot=target.slot)
        if facts.server.in_recovery:
            raise SetupError("this server is a standby: run teardown on the primary")
        plan = plan_teardown(facts, target, drop_tables=drop_tables)
        if dry_run:
            click.echo(as_script(plan), nl=False)
            return
        if drop_tables and facts.tables and not yes:
            _require_empty_tables(kept_rows(store))
            where = f"in the schema {target.schema} of the database {facts.server.database}"
            confirm(lambda: f"Drop the tables of the outbox {where}?", yes=yes)
        run_steps(store, plan)


def _require_empty_tables(kept: dict[str, int]) -> None:
    if rows := ", ".join(f"{count} {kind}" for kind, count in kept.items() if count):
        raise SetupError(f"the tables still hold {rows}: nothing was dropped (--yes drops them anyway)")
