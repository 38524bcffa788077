"""
`outrider setup`: create what is missing of the tables, the publication and the slot (on request also of the roles), and
print what was done.

It can be run again, and several may run at the same time. If the plan finds an obstacle, nothing is run.
"""

from __future__ import annotations

import click
from pydantic import Field

from outrider.cli._options import Number
from outrider.cli._setup_steps import run_steps
from outrider.operations.setup.facts import read_facts
from outrider.operations.setup.plan import Target, as_script, plan_setup, role_names
from outrider.runtime.command import settings_flags
from outrider.settings.database import DatabaseSettings
from outrider.settings.loading import load_settings
from outrider.storage.connection import connect
from outrider.storage.sql_files import migrations
from outrider.storage.store import Store


class SetupSettings(DatabaseSettings):
    """Where the outbox is, and the kind of its slot."""

    failover_slot: bool = Field(default=False, description="create the slot with failover = true (PostgreSQL 17+)")


@click.command(name="setup")
@settings_flags(SetupSettings, only=["database_url", "schema", "publication", "slot", "failover_slot"])
@click.option(
    "--handover-after",
    type=Number(min=0, max=86_400),
    metavar="SECONDS",
    help="how long a new row belongs to the relay before the scheduler may claim it; default: unchanged (initially 30)",
)
@click.option(
    "--polling-only",
    is_flag=True,
    help="create no publication and no slot: the scheduler delivers everything (sets --handover-after 0 by default)",
)
@click.option(
    "--roles", is_flag=True, help="create the roles of sql/roles.sql that are missing (outbox_relay, ...), and grant"
)
@click.option("--dry-run", is_flag=True, help="print the SQL that would run, for psql, and change nothing")
def command(
    config: str | None, handover_after: float | None, polling_only: bool, roles: bool, dry_run: bool, **flags: object
) -> None:
    """
    Create the tables, the publication and the slot.

    With --roles, also the roles of sql/roles.sql. Can be run again at any time.
    """
    settings = load_settings(SetupSettings, flags, config_file=config)
    target = Target(
        schema=settings.schema_name,
        publication=settings.publication,
        slot=settings.slot,
        failover=settings.failover_slot,
        handover_seconds=0 if polling_only and handover_after is None else handover_after,
        polling_only=polling_only,
        roles=roles,
    )
    with connect(settings.database_dsn, application_name="outrider setup") as connection:
        store = Store(connection, target.schema)
        names = role_names().values() if roles else ()
        facts = read_facts(store, publication=target.publication, slot=target.slot, roles=names)
        plan = plan_setup(facts, target, migrations())
        if dry_run:
            click.echo(as_script(plan), nl=False)
            return
        run_steps(store, plan)
