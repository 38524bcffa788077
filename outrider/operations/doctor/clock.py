"""
The clocks: of this machine and of the database.

No delivery depends on their difference: every time is the database's. But Celery's eta and expires, and whoever
compares logs, mean the clock of a machine.
"""

from __future__ import annotations

import time

from outrider.operations.doctor.finding import Finding, ok, warning
from outrider.storage.message import moment
from outrider.storage.store import Store

MUCH_SECONDS = 2.0


def clock_offset(store: Store) -> float:
    """How many seconds this machine's clock is ahead of the database's, less what the question took."""
    asked = time.time()
    server = moment(store.server_clock()).timestamp()
    answered = time.time()
    # The database read its clock somewhere in between: there is no offset that this cannot explain.
    if asked <= server <= answered:
        return 0.0
    return asked - server if server < asked else answered - server


def check_clock(offset_seconds: float) -> Finding:
    direction = "ahead of" if offset_seconds > 0 else "behind"
    if abs(offset_seconds) > MUCH_SECONDS:
        return warning(
            "clock",
            f"this machine's clock is {abs(offset_seconds):.1f} s {direction} the database's",
            "see NTP on both: eta, expires and the times in logs are off by as much",
        )
    return ok("clock", f"differs from the database's by {abs(offset_seconds):.3f} s")
