"""
`outrider teardown`: drop the slot and the publication; the tables, and what is in them, only when told so.
"""

from __future__ import annotations

import sys

import click

from outrider.errors import SetupError
from outrider.operations.setup import Target, apply_step, as_script, plan_teardown, read_facts
from outrider.operations.setup.facts import kept_rows
from outrider.runtime.command import settings_flags
from outrider.settings.loading import load_settings
from outrider.settings.models import DatabaseSettings
from outrider.storage.store import Store, connect


@click.command(name="teardown")
@settings_flags(DatabaseSettings, only=["database_url", "schema", "publication", "slot"])
@click.option("--drop-tables", is_flag=True, help="drop the tables too")
@click.option("--yes", is_flag=True, help="do not ask, and drop tables that still hold something")
@click.option("--dry-run", is_flag=True, help="print the SQL, for psql, and change nothing")
def command(config: str | None, drop_tables: bool, yes: bool, dry_run: bool, **flags: object) -> None:
    """Drop the replication slot and the publication; with --drop-tables also the tables."""
    settings = load_settings(DatabaseSettings, flags, config_file=config)
    target = Target(settings.schema_name, settings.publication, settings.slot)
    with connect(settings.database_dsn, application_name="outrider teardown") as connection:
        store = Store(connection, target.schema)
        facts = read_facts(store, publication=target.publication, slot=target.slot)
        if facts.in_recovery:
            raise SetupError("this server is a standby: run teardown on the primary")
        plan = plan_teardown(facts, target, drop_tables=drop_tables)
        if dry_run:
            click.echo(as_script(plan), nl=False)
            return
        if drop_tables and facts.tables and not yes:
            _refuse_to_lose(kept_rows(store))
            _ask(f"Drop the tables of the outbox in the schema {target.schema} of the database {facts.database}?")
        for step in plan:
            click.echo(f"{step.what}: ", nl=False)
            try:
                outcome = apply_step(store, step)
            except BaseException:
                click.echo("failed")
                raise
            click.echo(outcome)


def _refuse_to_lose(kept: dict[str, int]) -> None:
    if held := ", ".join(f"{count} {kind}" for kind, count in kept.items() if count):
        raise SetupError(f"the tables still hold {held}: nothing was dropped (--yes drops them all the same)")


def _ask(question: str) -> None:
    if not sys.stdin.isatty():
        raise click.UsageError("--drop-tables asks first, and nobody is there to answer: say --yes")
    click.confirm(question, abort=True)
