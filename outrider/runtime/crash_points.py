"""
Crash points: named places between two steps of a service at which a test can kill the process.

OUTRIDER_CRASH_AT=relay.after_confirm makes the process kill itself with SIGKILL (no clean-up, no message to a server)
when it first reaches this point; `relay.after_confirm:3` at the third visit. An unknown name is a SettingsError at
start.

An object gets its crash points once, from `crash_point`, when it is made. A point that is not chosen is an empty
function, called once per batch and never per message. Visits are counted per object: a relay that reconnects starts
from one again.

For tests only: do not set it in production. Importing this module reads nothing.
"""

from __future__ import annotations

import difflib
import itertools
import os
import re
import signal
from collections.abc import Callable, Mapping

from outrider.errors import SettingsError
from outrider.telemetry.logs import get_logger

VARIABLE = "OUTRIDER_CRASH_AT"

POINTS: Mapping[str, str] = {
    "relay.after_acquire": "the relay holds the slot and has read nothing",
    "relay.after_read": "rows are in the window, none is published",
    "relay.after_publish": "messages are published, none is confirmed",
    "relay.after_confirm": "outcomes have arrived, nothing is settled",
    "relay.before_settle": "the settler has a batch, and no statement has run",
    "relay.after_settle_delivered": "delivered rows have left the table, the position is not confirmed",
    "relay.after_settle_undelivered": "rows are failed, buried or handed over, the position is not confirmed",
    "relay.before_feedback": "the session knows that rows are settled, the position is not confirmed",
    "relay.shedding": "the broker is away and hold_seconds are over, no row is handed over",
    "relay.draining": "stop requested, messages are in flight",
    "relay.handing_over": "shutdown_timeout_seconds are over, no unconfirmed message is handed over",
    "scheduler.after_claim": "rows are leased, none is published",
    "scheduler.after_publish": "messages are published, none is confirmed",
    "scheduler.after_confirm": "outcomes have arrived, none is applied",
    "scheduler.before_settle": "decisions are made, no statement has run",
    "scheduler.after_settle": "the statements have run",
    "scheduler.after_release": "stop requested: unpublished rows are released, published ones are not confirmed",
}
"""Every crash point, and the state of the service there."""

_NUMBER = re.compile(r"[1-9][0-9]{0,8}")

log = get_logger(__name__)


def crash_point(name: str) -> Callable[[], None]:
    """The function to call at this point. It does nothing unless the environment names this point."""
    assert name in POINTS, f"there is no crash point {name}"
    chosen, visit = chosen_point(os.environ)
    if name != chosen:
        return lambda: None
    visits = itertools.count(1)

    def crash() -> None:
        if next(visits) == visit:
            log.warning("crash_point", point=name)
            os.kill(os.getpid(), signal.SIGKILL)

    return crash


def chosen_point(environment: Mapping[str, str]) -> tuple[str, int]:
    """The crash point that the environment names, and the visit. Raises SettingsError if there is no such point."""
    text = environment.get(VARIABLE)
    if not text:
        return "", 0
    name, colon, visit = text.partition(":")
    if name not in POINTS:
        close = difflib.get_close_matches(name, POINTS, n=1)
        hint = f" (did you mean {close[0]}?)" if close else ""
        raise SettingsError(f"{VARIABLE}: there is no crash point {name!r}{hint}")
    if colon and not _NUMBER.fullmatch(visit):
        raise SettingsError(f"{VARIABLE}: {visit!r} is not a number of visits, as in {name}:3")
    return name, int(visit) if colon else 1
