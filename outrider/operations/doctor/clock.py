"""
The clocks of this machine and of the database.

Delivery does not depend on their difference: every time is the database's. Celery's eta and expires, and the times in
logs, come from the clock of a machine.
"""

from __future__ import annotations

import time

from outrider.operations.doctor.finding import Finding, ok, warning
from outrider.storage.server_time import to_datetime
from outrider.storage.store import Store

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
