"""
The plan of a set-up or teardown: from facts to steps. Pure: no connection, no clock.

A plan lists every part of an outbox in the order of creation. The publication comes before the slot: a slot decodes
with the catalog of its position, and does not find a publication that was created later. Parts that exist are in the
plan too, without SQL. An obstacle that set-up cannot or must not remove raises SetupError.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, LiteralString

from outrider.errors import SetupError
from outrider.operations.setup.facts import Facts, SlotState, too_old
from outrider.storage.sql_files import Migration, script, sql_directory
from outrider.telemetry.printable import printable

FAILOVER_SERVER = 17
ROLES_FILE = "roles.sql"
REPLICATION = "a role with the REPLICATION attribute"

Kind = Literal["server", "migration", "handover", "roles", "publication", "slot", "hand over", "tables"]

_CREATE_ROLE = re.compile(r'^CREATE ROLE :"(\w+)"', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Target:
    """The outbox that is wanted."""

    schema: str
    publication: str
    slot: str
    failover: bool = False
    handover_seconds: float | None = None
    """None: unchanged."""
    polling_only: bool = False
    """No publication and no slot: the scheduler delivers everything."""
    roles: bool = False
    """The roles of sql/roles.sql with their grants."""


@dataclass(frozen=True, slots=True)
class Step:
    """One part of an outbox, and the SQL that creates or drops it."""

    kind: Kind
    what: str
    outcome: str
    sql: LiteralString | None = None
    """None: nothing to do."""
    needs: str = ""
    """The privilege that the step needs."""
    version: int | None = None
    """Of a migration."""


def plan_setup(facts: Facts, target: Target, migrations: Iterable[Migration]) -> list[Step]:
    """The steps that create the target. SetupError with every obstacle."""
    migrations = list(migrations)
    obstacles = [obstacle for obstacle in _obstacles(facts, target, migrations) if obstacle]
    if obstacles:
        raise SetupError("; ".join(obstacles))
    version = f"PostgreSQL {facts.server.server_version // 10000}"
    steps = [
        Step(
            "server", version, "supported" if target.polling_only else f"supported (wal_level {facts.server.wal_level})"
        )
    ]
    steps += [_migration_step(facts, target, migration) for migration in migrations]
    if facts.log_moved:
        steps.append(Step("server", "event log", "was written on another server: run `outrider events new-epoch`"))
    if target.handover_seconds is not None:
        steps.append(_handover_step(facts, target, target.handover_seconds))
    if target.roles:
        steps.append(_roles_step(facts, target))
    if not target.polling_only:
        steps += _publication_steps(facts, target)
        steps += _slot_steps(facts, target)
    return steps


def plan_teardown(facts: Facts, target: Target, *, drop_tables: bool) -> list[Step]:
    """The steps that drop the outbox: the tables only on request, and never a slot or publication of another outbox."""
    return [_drop_slot(facts, target), _drop_publication(facts, target), _drop_tables(facts, target, drop_tables)]


def slot_problem(slot: SlotState, database: str) -> str | None:
    """Why the slot does not belong to this outbox; None if it does. All databases of a server share the slot names."""
    if slot.database != database:
        return f"slot {slot.name} belongs to " + (f"database {slot.database}" if slot.database else "a standby")
    if slot.plugin != "pgoutput":
        return f"slot {slot.name} is for the plugin {slot.plugin}, not pgoutput"
    return None


def as_script(steps: Iterable[Step]) -> str:
    """The plan as a script for psql."""
    parts = []
    for step in steps:
        title = f"{step.what}: {step.outcome if step.sql is None else 'to do'}"
        parts.append(f"-- {printable(title)}")
        if step.sql is not None:
            sql = step.sql.strip()
            parts.append(f"BEGIN;\n{sql}\nCOMMIT;" if step.kind == "migration" else sql)
    return "\n\n".join(parts) + "\n"


def _obstacles(facts: Facts, target: Target, migrations: list[Migration]) -> Iterable[str | None]:
    yield too_old(facts.server.server_version)
    if facts.server.in_recovery:
        yield "this server is a standby: run set-up on the primary"
    if facts.tables and "outbox_migration" not in facts.tables:
        names = ", ".join(sorted(facts.tables))
        yield f"the schema {target.schema} has other tables with our names ({names}): choose another with --schema"
    known = max((migration.version for migration in migrations), default=0)
    if (newest := max(facts.applied, default=0)) > known:
        yield f"the schema {target.schema} has migration {newest}, this version knows {known}: upgrade outrider"
    if target.polling_only:
        return
    if facts.server.wal_level != "logical":
        yield (
            f"wal_level is {facts.server.wal_level} and must be logical: run ALTER SYSTEM SET wal_level = logical and "
            "restart PostgreSQL, or use --polling-only"
        )
    if target.failover and facts.server.server_version < FAILOVER_SERVER * 10000:
        yield f"failover slots need PostgreSQL {FAILOVER_SERVER} or newer"
    if facts.slot is not None and (problem := slot_problem(facts.slot, facts.server.database)):
        yield f"{problem}: choose another name with --slot"
    shape = facts.publication
    if shape is not None and (shape.all_tables or shape.column_list or len(shape.tables) > 0):
        # Not repaired: another outbox of this database may use it.
        problem = shape._replace(updates=False, deletes=False, truncates=False, inserts=True).problem(
            target.schema, target.publication
        )
        yield problem and f"{problem}: choose another name with --publication, or drop it"


def _migration_step(facts: Facts, target: Target, migration: Migration) -> Step:
    what = f"migration {migration.version} ({migration.name.replace('_', ' ')}) of the schema {target.schema}"
    if migration.version in facts.applied:
        return Step("migration", what, "already applied", version=migration.version)
    needs = (
        f"CREATE on the database {facts.server.database}, and to own the schema {target.schema} or have CREATE on it"
    )
    return Step("migration", what, "applied", script(migration.path, schema=target.schema), needs, migration.version)


def _handover_step(facts: Facts, target: Target, seconds: float) -> Step:
    what = f"handover after {seconds:g} s"
    if facts.handover_seconds == seconds:
        return Step("handover", what, "already set")
    sql = script("setup/handover_after.sql", schema=target.schema, handover_after=f"{seconds:f} seconds")
    return Step("handover", what, "set", sql, "to own the table outbox")


def role_names() -> dict[str, str]:
    """The role of each job of sql/roles.sql, as `outrider doctor` expects them."""
    return {
        job: f"outbox_{job}" for job in _CREATE_ROLE.findall((sql_directory() / ROLES_FILE).read_text(encoding="utf-8"))
    }


def _roles_step(facts: Facts, target: Target) -> Step:
    """Roles belong to the whole server: those that exist get their grants on this schema."""
    names = role_names()
    text = script(ROLES_FILE, schema=target.schema, **names)
    missing = [role for role in names.values() if role not in facts.roles]
    for role in facts.roles.intersection(names.values()):
        text = re.sub(rf'^CREATE ROLE "{role}".*\n', "", text, flags=re.MULTILINE)
    outcome = f"created {', '.join(missing)}; granted" if missing else "already exist; granted"
    needs = f"CREATEROLE, REPLICATION and ADMIN on pg_monitor; a superuser can run sql/{ROLES_FILE} instead"
    return Step("roles", f"roles of the schema {target.schema}", outcome, text, needs)


def _publication_steps(facts: Facts, target: Target) -> list[Step]:
    what = f"publication {target.publication}"
    shape = facts.publication
    if shape is None:
        sql = script("setup/publication.sql", schema=target.schema, publication=target.publication)
        needs = f"CREATE on the database {facts.server.database} and to own the table outbox"
        return [Step("publication", what, "created", sql, needs)]
    steps = []
    needs = "to own the publication and the table outbox"
    if not shape.tables:
        sql = script("setup/publication_table.sql", schema=target.schema, publication=target.publication)
        steps.append(Step("publication", what, "published no table; outbox table added", sql, needs))
    if not shape.inserts_only:
        sql = script("setup/publication_inserts.sql", publication=target.publication)
        steps.append(Step("publication", what, "changed to publish inserts only", sql, needs))
    return steps or [Step("publication", what, "already exists")]


def _slot_steps(facts: Facts, target: Target) -> list[Step]:
    what = f"slot {target.slot}"
    needs = REPLICATION
    if facts.slot is not None and facts.slot.lost is None:
        return [Step("slot", what, "already exists")]
    steps = []
    if facts.slot is not None:
        drop = script("setup/drop_slot.sql", slot=target.slot)
        steps.append(Step("slot", what, f"was lost ({facts.slot.lost}): dropped", drop, needs))
    file = "setup/slot_failover.sql" if target.failover else "setup/slot.sql"
    steps.append(Step("slot", what, "created", script(file, slot=target.slot), needs))
    # Also if the tables are new: producers may write as soon as they exist.
    hand_over = script("setup/hand_over.sql", schema=target.schema)
    steps.append(Step("hand over", "rows from before the slot", "", hand_over, "UPDATE on the table outbox"))
    return steps


def _drop_slot(facts: Facts, target: Target) -> Step:
    what = f"slot {target.slot}"
    if facts.slot is None:
        return Step("slot", what, "does not exist")
    if problem := slot_problem(facts.slot, facts.server.database):
        return Step("slot", what, f"kept: {problem}")
    return Step("slot", what, "dropped", script("setup/drop_slot.sql", slot=target.slot), REPLICATION)


def _drop_publication(facts: Facts, target: Target) -> Step:
    what = f"publication {target.publication}"
    if facts.publication is None:
        return Step("publication", what, "does not exist")
    if facts.publication.all_tables or facts.publication.tables not in ([], [f"{target.schema}.outbox"]):
        return Step("publication", what, f"kept: {facts.publication.problem(target.schema, target.publication)}")
    sql = script("setup/drop_publication.sql", publication=target.publication)
    return Step("publication", what, "dropped", sql, "to own the publication")


def _drop_tables(facts: Facts, target: Target, wanted: bool) -> Step:
    what = f"tables of the schema {target.schema}"
    if not facts.tables:
        return Step("tables", what, "does not exist")
    if not wanted:
        return Step("tables", what, "kept")
    if "outbox_migration" not in facts.tables:
        raise SetupError(f"the schema {target.schema} has other tables with our names: nothing was dropped")
    return Step("tables", what, "dropped", script("setup/drop_tables.sql", schema=target.schema), "to own the tables")
