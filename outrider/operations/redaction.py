"""
Redactor: what operators see of a payload is a copy without its secrets; what is stored and sent is untouched.

A redactor is a function of the application, named by a dotted path: it is given the event type, the decoded payload (a
copy that it may change) and the headers, and returns what may be seen. One that raises, or cannot be found while a
message is shown, hides the payload: showing too much is the one thing that must not happen.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

Redact = Callable[[str, Any, Mapping[str, Any]], Any]

HIDDEN = "<hidden>"


def load_redactor(path: str) -> Redact:
    """The function at a dotted path; ValueError that says what is wrong with it."""
    module_name, _, name = path.rpartition(".")
    try:
        found = getattr(import_module(module_name), name)
    except Exception as error:  # whatever a module of the application does when it is imported
        raise ValueError(f"redactor {path!r} cannot be imported ({type(error).__name__})") from None
    if not callable(found):
        raise ValueError(f"redactor {path!r} is not a function")
    redact: Redact = found
    return redact


def redacted(
    redact: Redact | None, event_type: str, payload: bytes, content_type: str, headers: Mapping[str, Any]
) -> str:
    """What operators may see, as text. Without a redactor that is nothing of the payload but its size."""
    if redact is None:
        return f"<{len(payload)} bytes of {content_type}>"
    try:
        # Decoded here, for this call alone: whatever the redactor does to it, it does to a copy.
        shown = redact(event_type, _decode(payload, content_type), dict(headers))
        return shown if isinstance(shown, str) else json.dumps(shown, default=str, ensure_ascii=False)
    except Exception as error:
        # The text of the error may quote the payload.
        logging.getLogger(__name__).warning("the redactor failed: %s; the payload is hidden", type(error).__name__)
        return HIDDEN


def _decode(payload: bytes, content_type: str) -> Any:
    if content_type == "application/json":
        return json.loads(payload)
    return payload.decode() if content_type.startswith("text/") else payload
