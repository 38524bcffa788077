"""
StoredContent: the content of a stored message, and how much of it operators may see.

With a redactor, its copy of the payload is shown. Without one, the payload's size and type are shown, or the payload
itself on request. Headers that repeat the payload (Celery's argsrepr and kwargsrepr) are treated like the payload.
Nothing is ever unpickled or uncompressed.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

from outrider.operations.redaction import HIDDEN, Redact, redacted

S = TypeVar("S", bound=NamedTuple)

HEADERS_WITH_PAYLOAD = ("argsrepr", "kwargsrepr")
"""Celery's headers that repeat the arguments of the task."""


class StoredContent(NamedTuple):
    """The fields are in the order of the SQL fragment `content_columns`."""

    schema_version: int
    aggregate_type: str | None
    aggregate_id: str | None
    payload: bytes
    content_type: str
    content_encoding: str
    headers: str
    properties: str
    declarations: str | None
    context: str | None
    dedup_key: str | None
    expires_at: datetime | None
    last_failed_at: datetime | None

    def visible_fields(self, event_type: str, redact: Redact | None, *, with_payload: bool = False) -> dict[str, Any]:
        """
        The fields by name, with JSON parsed and the payload redacted.

        with_payload  without a redactor, include the payload as it is
        """
        raw = with_payload and redact is None
        headers = _parsed(self.headers)
        fields = self._asdict() | {
            "headers": headers if raw else _hide_payload_headers(headers),
            "properties": _parsed(self.properties),
            "declarations": _parsed(self.declarations),
            "context": _parsed(self.context),
        }
        payload = bytes(fields.pop("payload"))
        fields["payload_bytes"] = len(payload)
        if raw:
            fields |= _payload_as_text(payload)
        else:
            known = headers if isinstance(headers, dict) else {}
            fields["payload"] = redacted(redact, event_type, payload, self.content_type, known)
        return fields


def split_content(summary: type[S], row: Sequence[Any] | None) -> tuple[S, StoredContent] | None:
    """The two parts of a row: the columns of the summary, and the content behind them."""
    if row is None:
        return None
    width = len(summary._fields)
    return summary._make(row[:width]), StoredContent._make(row[width:])


def _parsed(text: str | None) -> Any:
    try:
        return None if text is None else json.loads(text)
    except (ValueError, RecursionError):  # PostgreSQL's json allows deeper nesting and longer numbers than Python
        return text


def _hide_payload_headers(headers: Any) -> Any:
    if not isinstance(headers, dict):
        return HIDDEN
    return {name: HIDDEN if name in HEADERS_WITH_PAYLOAD else value for name, value in headers.items()}


def _payload_as_text(payload: bytes) -> dict[str, str]:
    try:
        return {"payload": payload.decode()}
    except UnicodeDecodeError:
        return {"payload_base64": base64.b64encode(payload).decode()}
