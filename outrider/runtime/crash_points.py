"""
Crash points: named places between two steps of a service at which a test can have the process killed.

OUTRIDER_CRASH_AT=relay.after_confirm kills it (SIGKILL to itself: no clean-up, no last words to a server) when it first
gets there, `relay.after_confirm:3` at the third time. A name that does not exist is a SettingsError at start.

`crash_point` is asked once, when the object that has the point is made. Where nothing is to happen, being there is the
call of an empty function, once per batch and never per message. Visits are counted per object: a relay that reconnects
counts from one again.

For tests alone: nothing here is meant to be set in production, and nothing is read when this module is imported.
"""

from __future__ import annotations

import difflib
import os
import re
import signal
from collections.abc import Callable, Mapping
from typing import NamedTuple

from outrider.errors import SettingsError
from outrider.telemetry.logs import get_logger

VARIABLE = "OUTRIDER_CRASH_AT"

POINTS: Mapping[str, str] = {
    "relay.after_acquire": "it has the slot, and has read nothing",
    "relay.after_read": "rows are in the window, none is sent",
    "relay.after_publish": "messages are on their way to the broker, none is confirmed",
    "relay.after_confirm": "the broker has answered, the table does not know",
    "relay.before_settle": "the settler has rows in hand",
    "relay.after_settle": "delivered rows have left the table, the session does not know",
    "relay.after_leave_behind": "rows are failed, buried or handed over, the session does not know",
    "relay.before_feedback": "the session knows, the server has not been told a position",
    "relay.shedding": "the broker is away and waited for no longer, no row is handed over",
    "relay.draining": "asked to stop, with messages in flight",
    "relay.handing_over": "the time to stop is over, what is unconfirmed is to be handed over",
    "scheduler.after_claim": "rows are leased, none is sent",
    "scheduler.after_publish": "messages are on their way to the broker, none is confirmed",
    "scheduler.after_confirm": "the broker has answered, nobody has looked at the answers",
    "scheduler.before_settle": "the verdicts are known, the store has not been told",
    "scheduler.after_settle": "the store has been told",
    "scheduler.after_release": "asked to stop: what was not sent is released, what was sent is unconfirmed",
}
"""Every point, and what is true there."""

_NUMBER = re.compile(r"[1-9][0-9]{0,8}")

CrashPoint = Callable[[], None]

log = get_logger(__name__)


class Chosen(NamedTuple):
    name: str
    visit: int


def crash_point(name: str) -> CrashPoint:
    """What to call at this point. It does nothing, unless the environment chose this point."""
    assert name in POINTS, f"there is no crash point {name}"
    chosen = chosen_point(os.environ)
    return _Crash(chosen) if chosen is not None and chosen.name == name else _pass


def chosen_point(environment: Mapping[str, str]) -> Chosen | None:
    """The point at which this process is to die; SettingsError for one that does not exist."""
    text = environment.get(VARIABLE)
    if not text:
        return None
    name, colon, visit = text.partition(":")
    if name not in POINTS:
        close = difflib.get_close_matches(name, POINTS, n=1)
        hint = f" (did you mean {close[0]}?)" if close else ""
        raise SettingsError(f"{VARIABLE}: there is no crash point {name!r}{hint}")
    if colon and not _NUMBER.fullmatch(visit):
        raise SettingsError(f"{VARIABLE}: {visit!r} is not a number of visits, as in {name}:3")
    return Chosen(name, int(visit) if colon else 1)


def _pass() -> None:
    pass


class _Crash:
    def __init__(self, chosen: Chosen) -> None:
        self._name = chosen.name
        self._visits_left = chosen.visit

    def __call__(self) -> None:
        self._visits_left -= 1
        if self._visits_left == 0:
            log.warning("crash_point", point=self._name)
            os.kill(os.getpid(), signal.SIGKILL)
