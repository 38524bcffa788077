"""
The slot: is it ours, does somebody read from it, and how much WAL does it keep on the disk?
"""

from __future__ import annotations

from collections.abc import Iterator

from outrider.operations.doctor.finding import Finding, failed, ok, warning
from outrider.operations.doctor.server import Limits, Server, Use
from outrider.operations.formatting import as_bytes
from outrider.operations.setup.facts import SlotState
from outrider.operations.setup.plan import FAILOVER_SERVER, slot_problem

MUCH_BYTES = 1024**3
"""WAL that is worth a warning where nothing limits it."""

_RECREATED = "start the relay, which makes it anew and leaves the rows from before to the scheduler"


def check_slot(slot: SlotState | None, name: str, database: str) -> Finding:
    if slot is None:
        return failed("slot", f"there is no slot {name}", "run `outrider setup`, or start the relay, which makes it")
    if problem := slot_problem(slot, database):
        return failed("slot", problem, "choose another name with --slot")
    if slot.lost:
        return failed("slot", f"slot {name} is lost: {slot.lost}", _RECREATED)
    if slot.wal_status == "unreserved":
        return warning("slot", f"slot {name} may be lost at the next checkpoint", "start the relay, or let it catch up")
    return ok("slot", f"{name}, pgoutput, {slot.wal_status or 'nothing reserved yet'}")


def check_reader(slot: SlotState) -> Finding:
    if slot.active:
        return ok("relay", f"reads from slot {slot.name} (pid {slot.active_pid})")
    return warning(
        "relay",
        f"no relay reads from slot {slot.name}, which keeps the WAL",
        "start cdc-relay; if there is to be none, `outrider teardown` drops the slot",
    )


def check_wal_limit(limits: Limits) -> Finding:
    check, limit = "max_slot_wal_keep_size", limits.max_slot_wal_keep_bytes
    if limit is not None:
        return ok(check, as_bytes(limit))
    return warning(
        check,
        "not set: while no relay runs, the slot keeps WAL until the disk is full",
        "set it to what the disk can spare (a lost slot loses no message: the rows go to the scheduler)",
    )


def check_retained(slot: SlotState, limits: Limits) -> Finding:
    check, retained, limit = "retained WAL", slot.retained_bytes, limits.max_slot_wal_keep_bytes
    found = f"slot {slot.name} keeps {as_bytes(retained)}"
    remedy = "start the relay" if not slot.active else "see why the relay does not confirm: its log, its /status"
    if slot.wal_status == "extended":
        return warning(check, f"{found}, more than max_wal_size", remedy)
    if limit is None:
        return warning(check, found, remedy) if (retained or 0) > MUCH_BYTES else ok(check, found)
    found += f" of at most {as_bytes(limit)}"
    return warning(check, found, remedy) if (retained or 0) > limit / 2 else ok(check, found)


def check_failover(slot: SlotState, server: Server, use: Use) -> Iterator[Finding]:
    """Nothing to say before PostgreSQL 17."""
    if server.server_version < FAILOVER_SERVER * 10000:
        return
    if slot.failover:
        yield ok("failover", f"slot {slot.name} is synchronised to standbys")
    elif not use.standbys:
        yield ok("failover", f"slot {slot.name} is not a failover slot, and there is no standby")
    else:
        yield warning(
            "failover",
            f"slot {slot.name} is not a failover slot: after a failover the relay starts with a new one, and the "
            "scheduler delivers what was on its way",
            "`outrider teardown`, then `outrider setup --failover-slot`, if that is too slow for you",
        )
