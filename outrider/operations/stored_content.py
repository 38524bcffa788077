"""
StoredContent: what a stored message says, and how much of it operators may see.

A payload is shown as the redactor leaves it. Without a redactor its size and type are shown, or the payload itself to
those who ask for it. Headers that repeat the payload (Celery's argsrepr and kwargsrepr) are as secret as the payload.
Nothing is ever unpickled or uncompressed.
"""

from __future__ import annotations

import base64
import json
from datetime import datetime
from typing import Any, NamedTuple

from outrider.operations.redaction import HIDDEN, Redact, redacted

ECHOES = ("argsrepr", "kwargsrepr")
"""Headers that repeat the payload."""


class StoredContent(NamedTuple):
    """The fields are in the order of the `content_columns` fragment of sql/queries.sql."""

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

    def shown(self, event_type: str, redact: Redact | None, *, with_payload: bool = False) -> dict[str, Any]:
        """
        The fields by name, JSON parsed, the payload as far as it may be seen.

        with_payload  show it as it is, where no redactor says otherwise
        """
        raw = with_payload and redact is None
        headers = _parsed(self.headers)
        fields = self._asdict() | {
            "headers": headers if raw else _without_echoes(headers),
            "properties": _parsed(self.properties),
            "declarations": _parsed(self.declarations),
            "context": _parsed(self.context),
        }
        payload = bytes(fields.pop("payload"))
        fields["payload_bytes"] = len(payload)
        if raw:
            fields |= _raw(payload)
        else:
            known = headers if isinstance(headers, dict) else {}
            fields["payload"] = redacted(redact, event_type, payload, self.content_type, known)
        return fields


def _parsed(text: str | None) -> Any:
    try:
        return None if text is None else json.loads(text)
    except (ValueError, RecursionError):  # PostgreSQL's json allows what Python's limits do not
        return text


def _without_echoes(headers: Any) -> Any:
    if not isinstance(headers, dict):
        return HIDDEN
    return {name: HIDDEN if name in ECHOES else value for name, value in headers.items()}


def _raw(payload: bytes) -> dict[str, str]:
    try:
        return {"payload": payload.decode()}
    except UnicodeDecodeError:
        return {"payload_base64": base64.b64encode(payload).decode()}
