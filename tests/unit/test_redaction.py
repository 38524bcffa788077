"""Redaction: what operators see of a payload."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from outrider.operations.redaction import HIDDEN, load_redactor, redacted

PAYLOAD = b'{"card": "4111", "order": 42}'


def without_card(event_type: str, payload: Any, headers: Any) -> Any:
    payload["card"] = f"redacted in {event_type}"
    return payload


def broken(event_type: str, payload: Any, headers: Any) -> Any:
    raise ValueError(f"cannot redact {payload}")


def test_the_redacted_copy_is_shown_and_the_payload_is_untouched() -> None:
    redact = load_redactor(f"{__name__}.without_card")
    shown = redacted(redact, "order.paid", PAYLOAD, "application/json", {})
    assert shown == '{"card": "redacted in order.paid", "order": 42}'
    assert PAYLOAD == b'{"card": "4111", "order": 42}'


def test_a_redactor_that_raises_hides_the_payload_and_is_logged_without_it(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert redacted(broken, "order.paid", PAYLOAD, "application/json", {}) == HIDDEN
    assert "ValueError" in caplog.text
    assert "4111" not in caplog.text


def test_a_payload_that_does_not_decode_is_hidden_and_the_redactor_is_not_blamed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert redacted(without_card, "x", b"\xff{", "application/json", {}) == HIDDEN
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("payload", "content_type", "headers", "shown"),
    [
        (b"\x1f\x8b...", "application/json", {"compression": "application/x-gzip"},
         "<5 bytes of application/json, compressed as application/x-gzip>"),
        (b"\x80\x04.", "application/x-python-serialize", {}, "<3 bytes of application/x-python-serialize>"),
        (b"\x93\x01", "application/x-msgpack", {}, "<2 bytes of application/x-msgpack>"),
    ],
)  # fmt: skip
def test_a_body_that_is_never_unpacked_is_shown_as_what_it_is_and_the_redactor_is_not_blamed(
    payload: bytes, content_type: str, headers: Any, shown: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert redacted(without_card, "order.paid", payload, content_type, headers) == shown
    assert redacted(None, "order.paid", payload, content_type, headers) == shown
    assert caplog.text == ""


def test_without_a_redactor_only_the_size_is_shown() -> None:
    assert redacted(None, "x", PAYLOAD, "application/json", {}) == "<29 bytes of application/json>"


@pytest.mark.parametrize("path", ["missing.module.function", "json.missing", "nodots", "json.__name__", ""])
def test_a_path_without_a_function_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="redactor"):
        load_redactor(path)
