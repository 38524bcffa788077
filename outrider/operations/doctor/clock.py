"""
The clock of the database, and its difference to this machine's.

Every time in the tables is the database's. If its clock was set back, rows are due later than they should be, by as
much, and times in the tables lie in the future until the clock has caught up. Delivery does not depend on the
difference to this machine; Celery's eta and expires, and the times in logs, come from the clock of a machine.
"""

from __future__ import annotations

import time

from outrider.operations.doctor.finding import Finding, ok, warning
from outrider.storage.server_time import to_datetime
from outrider.storage.store import Store

CLOCK_CHECK = "clock of the database"
WARNING_SECONDS = 2.0


def clock_offset(store: Store) -> float:
    """How many seconds this machine's clock is ahead of the database's, without the time that the query took."""
    before = time.time()
    server = to_datetime(store.server_clock()).timestamp()
    after = time.time()
    # The database read its clock between the two: a time in between means that no difference can be shown.
    if before <= server <= after:
        return 0.0
    return before - server if server < before else after - server


def check_clock(offset_seconds: float) -> Finding:
    direction = "ahead of" if offset_seconds > 0 else "behind"
    if abs(offset_seconds) > WARNING_SECONDS:
        return warning(
            "clock",
            f"this machine's clock is {abs(offset_seconds):.1f} s {direction} the database's",
            "check NTP on both machines: eta, expires and the times in logs are wrong by as much",
        )
    return ok("clock", f"differs from the database's by {abs(offset_seconds):.3f} s")


def check_database_clock(ahead_seconds: float | None) -> Finding:
    """`ahead_seconds`: how far the latest time in the tables lies ahead of the database's clock."""
    if ahead_seconds is not None and ahead_seconds > WARNING_SECONDS:
        return warning(
            CLOCK_CHECK,
            f"a recorded time lies {ahead_seconds:.1f} s in the future: the clock was set back by as much or more",
            "let NTP slew the clock, not set it: retries and claims are late by as much (the relay counts jumps in "
            "outbox_clock_jumps_total)",
        )
    return ok(CLOCK_CHECK, "no recorded time lies in the future")
