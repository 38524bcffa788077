"""
The tables: are the migrations, columns and indexes complete, and does vacuum keep up?
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from outrider.operations.doctor.finding import Finding, failed, ok, unknown, warning
from outrider.operations.doctor.server import Limits
from outrider.storage.message import COLUMN_DEFAULTS, Message
from outrider.storage.sql_files import script

MANY_DEAD_ROWS = 50_000
"""Ten times the threshold at which autovacuum should have run."""

_CREATE_INDEX = re.compile(r"^CREATE (?:UNIQUE )?INDEX (\w+) ON .+?;", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class VacuumState:
    dead_rows: int
    enabled: bool


@dataclass(frozen=True, slots=True)
class OldestTransaction:
    holder: str | None
    """None: no transaction that this role may read."""
    seconds: float | None
    hidden: int
    """Sessions whose transactions this role may not read."""


def check_migrations(applied: Iterable[int], known: Iterable[int], schema: str) -> Finding:
    check, applied, known = "migrations", frozenset(applied), frozenset(known)
    if missing := sorted(known - applied):
        found = (
            f"schema {schema} lacks migration {', '.join(map(str, missing))}" if applied else f"no outbox in {schema}"
        )
        return failed(check, found, "run `outrider setup`, or correct database_url and schema")
    if newer := sorted(applied - known):
        return failed(
            check, f"schema {schema} has migration {newer[-1]}, this version knows {max(known)}", "upgrade outrider"
        )
    return ok(check, f"schema {schema} is at migration {max(known)}")


def index_statements(schema: str) -> dict[str, str]:
    """The CREATE INDEX statement of every index of the schema, by name."""
    return {
        match[1]: " ".join(match[0].rstrip(";").split())
        for match in _CREATE_INDEX.finditer(script("schema.sql", schema=schema))
    }


def check_indexes(valid: Iterable[str], schema: str) -> Finding:
    statements = index_statements(schema)
    missing = [name for name in statements if name not in frozenset(valid)]
    if not missing:
        return ok("indexes", f"all {len(statements)} exist and are valid")
    repair = "; ".join(
        f"DROP INDEX IF EXISTS {schema}.{name}; {statements[name].replace(' INDEX ', ' INDEX CONCURRENTLY ', 1)}"
        for name in missing
    )
    return failed("indexes", f"missing or invalid: {', '.join(missing)}", f"run {repair}")


def check_columns(found: Iterable[str], schema: str) -> Finding:
    missing = [name for name in Message._fields if name not in frozenset(found)]
    if not missing:
        return ok("columns", f"{schema}.outbox has all {len(Message._fields)} that the services read")
    remedy = "add them as sql/schema.sql has them, or run the version that the schema belongs to"
    if any(name not in COLUMN_DEFAULTS for name in missing):
        remedy += "; the relay cannot read new rows and leaves them to the scheduler"
    return failed("columns", f"{schema}.outbox lacks {', '.join(missing)}", remedy)


def check_handover(seconds: float | None, *, send_timeout_seconds: float) -> Finding:
    check = "handover"
    if seconds is None:
        return warning(
            check, "the default of next_attempt_at has an unknown form", "run `outrider setup --handover-after 30`"
        )
    if seconds <= send_timeout_seconds:
        return failed(
            check,
            f"new rows are handed over to the scheduler after {seconds:g} s, which must be longer than "
            f"send_timeout_seconds ({send_timeout_seconds:g}): the relay does not start",
            "run `outrider setup --handover-after 30`, or lower send_timeout_seconds",
        )
    return ok(check, f"new rows are handed over to the scheduler after {seconds:g} s")


def check_vacuum(vacuum: VacuumState, limits: Limits) -> Finding:
    if not limits.autovacuum:
        return warning("vacuum", "autovacuum is off on this server", "set autovacuum and track_counts to on")
    if not vacuum.enabled:
        return warning(
            "vacuum", "autovacuum is off for the outbox table", "ALTER TABLE outbox RESET (autovacuum_enabled)"
        )
    if vacuum.dead_rows > MANY_DEAD_ROWS:
        return warning(
            "vacuum",
            f"{vacuum.dead_rows:,} dead rows in the outbox: autovacuum does not keep up",
            "check `oldest transaction`, raise autovacuum_max_workers, or run VACUUM outbox",
        )
    return ok("vacuum", f"{vacuum.dead_rows:,} dead rows in the outbox")


def check_oldest_transaction(oldest: OldestTransaction, longest_seconds: float) -> Finding:
    check = "oldest transaction"
    if oldest.seconds is not None and oldest.seconds > longest_seconds:
        return warning(
            check,
            f"{oldest.holder} has been open for {oldest.seconds:.0f} s: vacuum cannot remove rows deleted since then, "
            "and a new slot waits for it",
            "end it, or set idle_in_transaction_session_timeout",
        )
    if oldest.hidden:
        return unknown(
            check,
            f"the transactions of {oldest.hidden} sessions of other roles could not be checked",
            "GRANT pg_read_all_stats TO this role, or connect as the observer role of sql/roles.sql",
        )
    return ok(check, "none" if oldest.seconds is None else f"{oldest.seconds:.1f} s")
