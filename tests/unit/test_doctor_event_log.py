"""The doctor's checks of the event log as functions of facts."""

from __future__ import annotations

import pytest

from outrider.operations.doctor.event_log import check_origin, check_readers
from outrider.operations.doctor.finding import Finding
from outrider.operations.event_log import EventLogState, LogOrigin

QUIET = EventLogState(epoch=1, unreadable=0, restored=False, held_back_by=None, held_back_seconds=None)
HELD = EventLogState(epoch=1, unreadable=7, restored=False, held_back_by="process 1 (shop)", held_back_seconds=400.0)
HIDDEN = EventLogState(epoch=1, unreadable=7, restored=False, held_back_by="process 1 ()", held_back_seconds=None)


@pytest.mark.parametrize(
    ("finding", "level", "words"),
    [
        (check_origin(None, restored=False), "ok", "no events"),
        (check_origin(LogOrigin("7", "7"), restored=False), "ok", "made on this server"),
        (check_origin(LogOrigin("7", "8"), restored=False), "failed", "system identifier 7, here 8"),
        (check_origin(LogOrigin("7", "7"), restored=True), "failed", "outrider events new-epoch"),
        (check_readers(QUIET, 300), "ok", "none is held back"),
        (check_readers(HELD, 300), "warning", "process 1 (shop) has been open for 400 s"),
        (check_readers(HELD, 300), "warning", "they cannot see 7 events"),
        (check_readers(HELD, 500), "ok", "held back for 400.0 s"),
        (check_readers(HIDDEN, 300), "warning", "GRANT pg_read_all_stats"),
    ],
)
def test_a_finding_says_what_is_wrong_and_what_to_do(finding: Finding, level: str, words: str) -> None:
    assert finding.level == level
    assert words in finding.line
