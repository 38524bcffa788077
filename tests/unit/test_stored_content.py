"""How much of a stored message operators can see."""

from __future__ import annotations

from typing import Any

import pytest

from outrider.operations.redaction import HIDDEN
from outrider.operations.stored_content import StoredContent

SECRET = "4111"
MESSAGE = StoredContent(
    schema_version=1,
    aggregate_type=None,
    aggregate_id=None,
    payload=b'{"card": "4111"}',
    content_type="application/json",
    content_encoding="utf-8",
    headers='{"argsrepr": "(4111,)", "task": "pay"}',
    properties="{}",
    declarations=None,
    context=None,
    dedup_key=None,
    expires_at=None,
    last_failed_at=None,
)


def without_card(event_type: str, payload: Any, headers: Any) -> Any:
    return {**payload, "card": "***"}


def broken(event_type: str, payload: Any, headers: Any) -> Any:
    raise ValueError(payload)


def test_without_a_redactor_size_and_type_are_shown_and_headers_that_repeat_the_payload_hidden() -> None:
    shown = MESSAGE.visible_fields("pay", None)
    assert shown["payload"] == "<16 bytes of application/json>"
    assert shown["headers"] == {"argsrepr": HIDDEN, "task": "pay"}
    assert SECRET not in str(shown)


def test_with_payload_shows_the_payload_as_it_is() -> None:
    shown = MESSAGE.visible_fields("pay", None, with_payload=True)
    assert shown["payload"] == '{"card": "4111"}'
    assert shown["headers"]["argsrepr"] == "(4111,)"


@pytest.mark.parametrize(("redact", "payload"), [(without_card, '{"card": "***"}'), (broken, HIDDEN)])
def test_with_a_redactor_only_its_copy_is_shown(redact: Any, payload: str) -> None:
    shown = MESSAGE.visible_fields("pay", redact, with_payload=True)
    assert shown["payload"] == payload
    assert SECRET not in str(shown)


def test_bytes_that_are_not_text_are_shown_as_base64_and_never_unpickled() -> None:
    pickled = MESSAGE._replace(payload=b"\x80\x04cos\nsystem\n.", content_type="application/x-python-serialize")
    shown = pickled.visible_fields("pay", None, with_payload=True)
    assert shown["payload_base64"] == "gARjb3MKc3lzdGVtCi4="
    assert "payload" not in shown


def test_a_message_is_shown_although_python_cannot_parse_its_headers() -> None:
    deep = MESSAGE._replace(headers='{"a":' * 100_000 + "1" + "}" * 100_000)
    assert deep.visible_fields("pay", None)["headers"] == HIDDEN
