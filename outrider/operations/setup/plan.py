"""
What is missing: from facts to steps. Pure: no connection, no clock.

A plan lists every part of an outbox in the order in which it must come to be (publication before slot: a slot decodes
with the catalog as it was, and a publication that is younger than the slot's position is not found). Parts that are
there already are in the plan too, with no SQL. What set-up cannot or must not repair is a SetupError that names it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, LiteralString

from outrider.errors import SetupError
from outrider.operations.setup.facts import Facts, SlotState, too_old
from outrider.storage.sql_files import Migration, script

FAILOVER_SERVER = 17
REPLICATION = "a role with the REPLICATION attribute"

Kind = Literal["server", "migration", "handover", "publication", "slot", "hand over", "tables"]


@dataclass(frozen=True, slots=True)
class Target:
    """What the outbox is to be."""

    schema: str
    publication: str
    slot: str
    failover: bool = False
    handover_seconds: float | None = None
    """None: as it is."""
    polling_only: bool = False
    """No publication and no slot: the scheduler delivers everything."""


@dataclass(frozen=True, slots=True)
class Step:
    """One part of an outbox and what it takes to get it."""

    kind: Kind
    what: str
    outcome: str
    sql: LiteralString | None = None
    """None: nothing to do."""
    needs: str = ""
    """The privilege without which the database refuses."""
    version: int | None = None
    """Of a migration."""


def plan_setup(facts: Facts, target: Target, migrations: Iterable[Migration]) -> list[Step]:
    """The steps from here to there; SetupError when there is no way, with every obstacle."""
    migrations = list(migrations)
    obstacles = [obstacle for obstacle in _obstacles(facts, target, migrations) if obstacle]
    if obstacles:
        raise SetupError("; ".join(obstacles))
    version = f"PostgreSQL {facts.server_version // 10000}"
    steps = [Step("server", version, "will do" if target.polling_only else f"will do (wal_level {facts.wal_level})")]
    steps += [_migration_step(facts, target, migration) for migration in migrations]
    if target.handover_seconds is not None:
        steps.append(_handover_step(facts, target, target.handover_seconds))
    if not target.polling_only:
        steps += _publication_steps(facts, target)
        steps += _slot_steps(facts, target)
    return steps


def plan_teardown(facts: Facts, target: Target, *, drop_tables: bool) -> list[Step]:
    """The way back. Tables stay unless told otherwise; a slot or publication that is not this outbox's stays too."""
    return [_drop_slot(facts, target), _drop_publication(facts, target), _drop_tables(facts, target, drop_tables)]


def slot_problem(slot: SlotState, database: str) -> str | None:
    """Why the slot is not one that this outbox can ever read from; slots are shared by all databases of a server."""
    if slot.database != database:
        return f"slot {slot.name} belongs to " + (f"database {slot.database}" if slot.database else "a standby")
    if slot.plugin != "pgoutput":
        return f"slot {slot.name} is for the plugin {slot.plugin}, not pgoutput"
    return None


def as_script(steps: Iterable[Step]) -> str:
    """The plan as SQL that psql runs as it is."""
    parts = []
    for step in steps:
        title = f"{step.what}: {step.outcome if step.sql is None else 'to do'}"
        parts.append("\n".join(f"-- {line}" for line in title.splitlines()))
        if step.sql is not None:
            sql = step.sql.strip()
            parts.append(f"BEGIN;\n{sql}\nCOMMIT;" if step.kind == "migration" else sql)
    return "\n\n".join(parts) + "\n"


def _obstacles(facts: Facts, target: Target, migrations: list[Migration]) -> Iterable[str | None]:
    yield too_old(facts.server_version)
    if facts.in_recovery:
        yield "this server is a standby: run set-up on the primary"
    if facts.tables and "outbox_migration" not in facts.tables:
        names = ", ".join(sorted(facts.tables))
        yield f"the schema {target.schema} has a table {names} of somebody else: choose another with --schema"
    known = max((migration.version for migration in migrations), default=0)
    if (newest := max(facts.applied, default=0)) > known:
        yield f"the schema {target.schema} has migration {newest}, this version knows {known}: upgrade outrider"
    if target.polling_only:
        return
    if facts.wal_level != "logical":
        yield (
            f"wal_level is {facts.wal_level} and must be logical: run ALTER SYSTEM SET wal_level = logical and restart "
            "PostgreSQL (--polling-only does without)"
        )
    if target.failover and facts.server_version < FAILOVER_SERVER * 10000:
        yield f"failover slots need PostgreSQL {FAILOVER_SERVER} or newer"
    if facts.slot is not None and (problem := slot_problem(facts.slot, facts.database)):
        yield f"{problem}: choose another name with --slot"
    shape = facts.publication
    if shape is not None and (shape.all_tables or shape.column_list or len(shape.tables) > 0):
        # Not repaired: another outbox of this database may be reading from it.
        problem = shape._replace(updates=False, deletes=False, truncates=False, inserts=True).problem(
            target.schema, target.publication
        )
        yield problem and f"{problem}: choose another name with --publication, or drop it"


def _migration_step(facts: Facts, target: Target, migration: Migration) -> Step:
    what = f"migration {migration.version} ({migration.name.replace('_', ' ')}) of the schema {target.schema}"
    if migration.version in facts.applied:
        return Step("migration", what, "already there", version=migration.version)
    needs = f"CREATE on the database {facts.database}, and to own the schema {target.schema} or have CREATE on it"
    return Step("migration", what, "applied", script(migration.path, schema=target.schema), needs, migration.version)


def _handover_step(facts: Facts, target: Target, seconds: float) -> Step:
    what = f"handover after {seconds:g} s"
    if facts.handover_seconds == seconds:
        return Step("handover", what, "already so")
    sql = script("setup/handover_after.sql", schema=target.schema, handover_after=f"{seconds:f} seconds")
    return Step("handover", what, "set", sql, "to own the table outbox")


def _publication_steps(facts: Facts, target: Target) -> list[Step]:
    what = f"publication {target.publication}"
    shape = facts.publication
    if shape is None:
        sql = script("setup/publication.sql", schema=target.schema, publication=target.publication)
        needs = f"CREATE on the database {facts.database} and to own the table outbox"
        return [Step("publication", what, "created", sql, needs)]
    steps = []
    needs = "to own the publication and the table outbox"
    if not shape.tables:
        sql = script("setup/publication_table.sql", schema=target.schema, publication=target.publication)
        steps.append(Step("publication", what, "published nothing; now the outbox table", sql, needs))
    if not shape.inserts_only:
        sql = script("setup/publication_inserts.sql", publication=target.publication)
        steps.append(Step("publication", what, "changed to publish inserts only", sql, needs))
    return steps or [Step("publication", what, "already there")]


def _slot_steps(facts: Facts, target: Target) -> list[Step]:
    what = f"slot {target.slot}"
    needs = REPLICATION
    if facts.slot is not None and facts.slot.lost is None:
        return [Step("slot", what, "already there")]
    steps = []
    if facts.slot is not None:
        drop = script("setup/drop_slot.sql", slot=target.slot)
        steps.append(Step("slot", what, f"was lost ({facts.slot.lost}): dropped", drop, needs))
    file = "setup/slot_failover.sql" if target.failover else "setup/slot.sql"
    steps.append(Step("slot", what, "created", script(file, slot=target.slot), needs))
    # Also where the tables are new: producers may write as soon as they are there.
    hand_over = script("setup/hand_over.sql", schema=target.schema)
    steps.append(Step("hand over", "rows from before the slot", "", hand_over, "UPDATE on the table outbox"))
    return steps


def _drop_slot(facts: Facts, target: Target) -> Step:
    what = f"slot {target.slot}"
    if facts.slot is None:
        return Step("slot", what, "not there")
    if problem := slot_problem(facts.slot, facts.database):
        return Step("slot", what, f"left alone: {problem}")
    return Step("slot", what, "dropped", script("setup/drop_slot.sql", slot=target.slot), REPLICATION)


def _drop_publication(facts: Facts, target: Target) -> Step:
    what = f"publication {target.publication}"
    if facts.publication is None:
        return Step("publication", what, "not there")
    if facts.publication.all_tables or facts.publication.tables not in ([], [f"{target.schema}.outbox"]):
        return Step("publication", what, f"left alone: {facts.publication.problem(target.schema, target.publication)}")
    sql = script("setup/drop_publication.sql", publication=target.publication)
    return Step("publication", what, "dropped", sql, "to own the publication")


def _drop_tables(facts: Facts, target: Target, wanted: bool) -> Step:
    what = f"tables of the schema {target.schema}"
    if not facts.tables:
        return Step("tables", what, "not there")
    if not wanted:
        return Step("tables", what, "kept")
    if "outbox_migration" not in facts.tables:
        raise SetupError(f"the schema {target.schema} has tables of other programs: nothing was dropped")
    return Step("tables", what, "dropped", script("setup/drop_tables.sql", schema=target.schema), "to own the tables")
