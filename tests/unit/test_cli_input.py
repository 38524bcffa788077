"""Input and output of the commands: wrong input is a usage error in one line, before anything is connected."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import click
import pytest

from outrider.cli import outrider
from outrider.cli._options import duration, duration_or_time, message_id
from outrider.telemetry.printable import printable

EVENT_ID = "0d9f1c52-6e0c-4c52-9a7e-1d2f3a4b5c6d"


@pytest.fixture(autouse=True)
def _unreachable_database(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTRIDER_DATABASE_URL", "postgresql://127.0.0.1:1/nowhere")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["publish", "a", "--payload", "{oops}"], "is not JSON"),
        (["publish", "a", "--payload", "NaN"], "is not JSON"),
        (["publish", "a", "--payload", "[" * 100_000], "is nested too deeply"),
        (["publish", "a", "--payload", "@/no/such/file"], "cannot be read: No such file"),
        (["publish", "a", "--payload", "\udcff"], "is not UTF-8 text"),
        (["publish", ""], "must not be empty"),
        (["publish", "a\0b"], "must not contain a NUL"),
        (["publish", "a" * 256, "--routing-key", "q"], "must be at most 255 bytes, not 256"),
        (["publish", "a", "--wait", "nan"], "nan is not a finite number"),
        (["dead", "replay", "--all", "--rate", "nan"], "nan is not a finite number"),
        (["dead", "list", "--limit", "9" * 30], "is not in the range"),
        (["publish", "a", "--routing-key", "ä" * 128], "'--routing-key': must be at most 255 bytes, not 256"),
        (["publish", "a", "--ordering-key", ""], "must not be empty"),
        (["publish", "a", "--header", "novalue"], "must be NAME=VALUE"),
        (["publish", "a", "--header", "=x"], "must be NAME=VALUE"),
        (["publish", "a", "--expires", "tomorrow"], "is neither a duration such as 2h nor a time"),
        (["publish", "a", "--expires", "90s", "--deliver-after", "1h"], "expires must be later than deliver_after"),
        (["publish", "a", "--ordering-key", "k", "--deliver-after", "1h"], "a delayed message cannot be ordered"),
        (["dead", "list", "--older-than", "3"], "is not a duration such as 90s"),
        (["dead", "list", "--fingerprint", "xyz"], "hexadecimal digits"),
        (["dead", "list", "--reason", "bad"], "must be one of max attempts, expired, rejected, undecodable"),
        (["dead", "replay", " "], "is neither a row's id nor an event_id nor a task id"),
        (["dead", "purge", "--yes"], "Missing option '--older-than'"),
        (["pending", "list", "--owner", "me"], "'relay', 'scheduler'"),
        (["replay", "--archive", "--stream", "s", "--after", "3"], "--after needs --stream"),
        (["replay", "--since", "2026-01-31", "--dry-run"], "needs a time of day and a time zone"),
    ],
)
def test_wrong_input_is_a_usage_error(arguments: list[str], words: str) -> None:
    with pytest.raises(click.UsageError) as error:
        outrider.main(arguments, standalone_mode=False)
    assert words in error.value.format_message()
    assert "\n" not in error.value.format_message()


def test_a_file_that_is_not_text_needs_a_content_type(tmp_path: Path) -> None:
    (tmp_path / "body").write_bytes(b"\xff\x00")
    with pytest.raises(click.UsageError, match="give another --content-type"):
        outrider.main(["publish", "a", "--payload", f"@{tmp_path / 'body'}"], standalone_mode=False)


def test_durations_and_times_have_units_and_zones() -> None:
    assert [duration(text) for text in ("90s", "15m", "2h", "7d", "1.5h")] == [90, 900, 7200, 604_800, 5400]
    assert duration("999999999999w") < 2**33  # PostgreSQL's interval holds it
    assert duration_or_time("2m") == 120
    assert duration_or_time("2026-01-31T12:00Z") == datetime(2026, 1, 31, 12, tzinfo=UTC)


def test_a_message_is_selected_by_its_row_id_or_its_event_id() -> None:
    assert message_id("17") == 17
    assert message_id(str(2**63 - 1)) == 2**63 - 1
    assert message_id(EVENT_ID.upper()) == EVENT_ID
    for wrong in (str(2**63), "1" * 5000, " ", ""):
        with pytest.raises(click.BadParameter):
            message_id(wrong)


def test_control_characters_in_stored_text_are_escaped() -> None:
    assert printable("tab\t bell\x07 csi\x9b31m \u202e\u2028\x00") == r"tab\t bell\x07 csi\x9b31m \u202e\u2028\x00"
    assert printable("Grüße 你好") == "Grüße 你好"
    assert printable({"a": "\x1b"}) == '{"a": "\\u001b"}'
    assert (printable(None), printable(True), printable(0)) == ("-", "yes", "0")
