"""
The slot: does it belong to this outbox, does a relay read it, and how much WAL does it keep on the disk?
"""

from __future__ import annotations

from collections.abc import Iterator

from outrider.operations.doctor.finding import Finding, failed, ok, warning
from outrider.operations.doctor.server import Limits, ReplicationUse
from outrider.operations.human_readable import as_bytes
from outrider.operations.setup.facts import Server, SlotState
from outrider.operations.setup.plan import FAILOVER_SERVER, slot_problem

RETAINED_WARNING_BYTES = 1024**3
"""Retained WAL that deserves a warning on a server without max_slot_wal_keep_size."""


def check_slot(slot: SlotState | None, name: str, database: str) -> Finding:
    if slot is None:
        return failed("slot", f"there is no slot {name}", "run `outrider setup`, or start the relay, which creates it")
    if problem := slot_problem(slot, database):
        return failed("slot", problem, "choose another name with --slot")
    if slot.lost:
        remedy = "start the relay, which creates it again and leaves the rows from before to the scheduler"
        return failed("slot", f"slot {name} is lost: {slot.lost}", remedy)
    if slot.wal_status == "unreserved":
        return warning("slot", f"slot {name} may be lost at the next checkpoint", "start the relay, or let it catch up")
    return ok("slot", f"{name}, pgoutput, {slot.wal_status or 'nothing reserved yet'}")


def check_reader(slot: SlotState) -> Finding:
    if slot.active:
        return ok("relay", f"reads slot {slot.name} (pid {slot.active_pid})")
    return warning(
        "relay",
        f"no relay reads slot {slot.name}, and the slot keeps WAL on the disk",
        "start cdc-relay; if you do not want a relay, drop the slot with `outrider teardown`",
    )


def check_wal_limit(limits: Limits) -> Finding:
    check, limit = "max_slot_wal_keep_size", limits.max_slot_wal_keep_bytes
    if limit is not None:
        return ok(check, as_bytes(limit))
    return warning(
        check,
        "not set: while no relay runs, the slot keeps WAL until the disk is full",
        "set it to the disk space that you can spare (a lost slot loses no message: the scheduler delivers the rows)",
    )


def check_retained(slot: SlotState, limits: Limits) -> Finding:
    check, retained, limit = "retained WAL", slot.retained_bytes, limits.max_slot_wal_keep_bytes
    found = f"slot {slot.name} keeps {as_bytes(retained)}"
    remedy = "find out why the relay does not confirm: its log, its /status" if slot.active else "start the relay"
    if slot.wal_status == "extended":
        return warning(check, f"{found}, more than max_wal_size", remedy)
    if limit is None:
        return warning(check, found, remedy) if (retained or 0) > RETAINED_WARNING_BYTES else ok(check, found)
    found += f" of at most {as_bytes(limit)}"
    return warning(check, found, remedy) if (retained or 0) > limit / 2 else ok(check, found)


def check_failover(slot: SlotState, server: Server, use: ReplicationUse) -> Iterator[Finding]:
    """No finding before PostgreSQL 17."""
    if server.server_version < FAILOVER_SERVER * 10000:
        return
    if slot.failover:
        yield ok("failover", f"slot {slot.name} is synchronised to standbys")
    elif not use.standbys:
        yield ok("failover", f"slot {slot.name} is not a failover slot, and there is no standby")
    else:
        yield warning(
            "failover",
            f"slot {slot.name} is not a failover slot: after a failover the relay starts with a new slot, and the "
            "scheduler delivers the messages that were in flight",
            "if that is too slow for you: `outrider teardown`, then `outrider setup --failover-slot`",
        )
