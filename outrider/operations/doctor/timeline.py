"""
The timeline: was this server promoted lately? A failover can lose transactions whose messages were already sent.

PostgreSQL starts a new timeline when a standby is promoted, and when a server is restored to a point in time.
"""

from __future__ import annotations

from dataclasses import dataclass

from outrider.operations.diagnostic_queries import Unavailable
from outrider.operations.doctor.finding import Finding, not_checked, ok, warning
from outrider.operations.human_readable import as_age

RECENT_SECONDS = 24 * 3600.0

FAILOVER_FOUND = (
    "transactions that had not reached this server before its promotion are lost, and their messages may have been sent"
)
FAILOVER_REMEDY = (
    "compare with the consumers' records; to avoid it (PostgreSQL 17+), let synchronized_standby_slots name the "
    "standby's slot, and use a failover slot"
)


@dataclass(frozen=True, slots=True)
class Promotion:
    """The start of the server's timeline. Null: the server has no record of it."""

    seconds_ago: float | None
    since_start_of: str | None
    """A relay that was running before it, and saw the older timeline."""


def check_timeline(timeline: int, promotion: Promotion | Unavailable) -> Finding:
    check = "timeline"
    if timeline == 1:
        return ok(check, "1, this server was never promoted")
    if isinstance(promotion, Unavailable):
        return not_checked(check, promotion)
    if promotion.seconds_ago is None:
        return ok(check, f"{timeline}, there is no record of its beginning")
    found = f"{timeline}, begun {as_age(promotion.seconds_ago)} ago"
    if promotion.since_start_of is not None:
        found += f" while relay {promotion.since_start_of} was running"
    elif promotion.seconds_ago > RECENT_SECONDS:
        return ok(check, found)
    return warning(check, f"{found}: {FAILOVER_FOUND}", FAILOVER_REMEDY)
