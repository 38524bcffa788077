"""
The log of event streams: can it be read in order on this server, and does a transaction hold its readers back?
"""

from __future__ import annotations

from outrider.operations.doctor.finding import Finding, failed, ok, warning
from outrider.operations.event_log import EventLogState, LogOrigin
from outrider.operations.human_readable import as_count

NEW_EPOCH = "run `outrider events new-epoch`"


def check_origin(origin: LogOrigin | None, *, restored: bool) -> Finding:
    check = "event log"
    if restored:
        return failed(
            check,
            "restored from a server with larger transaction ids: new events would sort before old ones, so reading it "
            "is refused",
            NEW_EPOCH,
        )
    if origin is None:
        return ok(check, "no events")
    if origin.moved:
        return failed(
            check,
            f"written on another server (system identifier {origin.log_server}, here {origin.this_server}): new events "
            "may sort before old ones, and readers miss them",
            NEW_EPOCH,
        )
    return ok(check, "its order was made on this server")


def check_readers(log: EventLogState, longest_seconds: float) -> Finding:
    check = "event log readers"
    seconds = log.held_back_seconds
    if log.held_back_by is not None and seconds is None:
        return warning(
            check,
            f"{log.held_back_by} may hold readers back, but this role may not see how long it has been open",
            "GRANT pg_read_all_stats TO this role, or connect as the observer role of sql/roles.sql",
        )
    if seconds is not None and seconds > longest_seconds:
        return warning(
            check,
            f"{log.held_back_by} has been open for {seconds:.0f} s and holds readers of the log back: they cannot see "
            f"{as_count(log.unreadable)} events",
            "end it; readers go on by themselves",
        )
    return ok(check, "none is held back" if seconds is None else f"held back for {seconds:.1f} s")
