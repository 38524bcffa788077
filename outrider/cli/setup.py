"""
`outrider setup`: make the tables, the publication and the slot, as far as they are missing; say what was done.

Safe to run again and at once with another. Nothing is run when the plan meets an obstacle.
"""

from __future__ import annotations

import click
from pydantic import Field

from outrider.cli._options import Number
from outrider.operations.setup import Target, apply_step, as_script, plan_setup, read_facts
from outrider.runtime.command import settings_flags
from outrider.settings.loading import load_settings
from outrider.settings.models import DatabaseSettings
from outrider.storage.sql_files import migrations
from outrider.storage.store import Store, connect


class SetupSettings(DatabaseSettings):
    """Where the outbox is, and what its slot is to be."""

    failover_slot: bool = Field(default=False, description="create the slot with failover = true (PostgreSQL 17+)")


@click.command(name="setup")
@settings_flags(SetupSettings, only=["database_url", "schema", "publication", "slot", "failover_slot"])
@click.option(
    "--handover-after",
    type=Number(min=0, max=86_400),
    metavar="SECONDS",
    help="how long a new row is the relay's before the scheduler may take it; default: as it is (at first 30)",
)
@click.option(
    "--polling-only",
    is_flag=True,
    help="no publication and no slot: the scheduler delivers everything (handover after 0 s unless told otherwise)",
)
@click.option("--dry-run", is_flag=True, help="print the SQL that is missing, for psql, and change nothing")
def command(
    config: str | None, handover_after: float | None, polling_only: bool, dry_run: bool, **flags: object
) -> None:
    """Make the tables, the publication and the replication slot. Can be run again at any time."""
    settings = load_settings(SetupSettings, flags, config_file=config)
    target = Target(
        schema=settings.schema_name,
        publication=settings.publication,
        slot=settings.slot,
        failover=settings.failover_slot,
        handover_seconds=0 if polling_only and handover_after is None else handover_after,
        polling_only=polling_only,
    )
    with connect(settings.database_dsn, application_name="outrider setup") as connection:
        store = Store(connection, target.schema)
        plan = plan_setup(read_facts(store, publication=target.publication, slot=target.slot), target, migrations())
        if dry_run:
            click.echo(as_script(plan), nl=False)
            return
        for step in plan:
            click.echo(f"{step.what}: ", nl=False)  # before it is done: a slot waits for running transactions
            try:
                outcome = apply_step(store, step)
            except BaseException:
                click.echo("failed")
                raise
            click.echo(outcome)
