"""
Redaction: operators see a copy of the payload without its secrets. The stored payload is never changed.

A redactor is a function of the application, named by its dotted path:

    redact(event_type, payload, headers) -> what operators may see

`payload` is a decoded copy that the function may change: of JSON the values, of text the str, of other types the bytes.
If the function raises, or the payload cannot be decoded, the payload is hidden.

Bodies that are compressed, or serialized by Celery as pickle, YAML or msgpack, are never unpacked here. The function
does not get them; their size and type are shown.
"""

from __future__ import annotations

import inspect
import json
import logging
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

Redact = Callable[[str, Any, Mapping[str, Any]], Any]

HIDDEN = "<hidden>"
COMPRESSION_HEADER = "compression"
"""kombu's header that names the compression of the body."""

# kombu's content types of bodies that only Celery's own serializers can read.
_SERIALIZED = frozenset({"application/x-python-serialize", "application/x-yaml", "application/x-msgpack"})


def load_redactor(path: str) -> Redact:
    """Import the function at a dotted path. ValueError if it cannot be imported or called."""
    module_name, _, name = path.rpartition(".")
    try:
        found = getattr(import_module(module_name), name)
    except Exception as error:  # a module of the application can raise anything at import
        raise ValueError(f"redactor {path!r} cannot be imported ({type(error).__name__})") from None
    if not callable(found):
        raise ValueError(f"redactor {path!r} is not a function")
    redact: Redact = found
    try:
        inspect.signature(redact).bind("event.type", {}, {})
    except TypeError:
        raise ValueError(f"redactor {path!r} must take (event_type, payload, headers)") from None
    except ValueError:  # a function in C without a signature
        pass
    return redact


def redacted(
    redact: Redact | None, event_type: str, payload: bytes, content_type: str, headers: Mapping[str, Any]
) -> str:
    """The payload as operators may see it. Without a redactor: only its size, content type and compression."""
    compression = headers.get(COMPRESSION_HEADER)
    if redact is None or compression or content_type in _SERIALIZED:
        compressed = f", compressed as {compression}" if compression else ""
        return f"<{len(payload)} bytes of {content_type}{compressed}>"
    try:
        decoded = _decode(payload, content_type)
    except (ValueError, RecursionError):
        return HIDDEN
    try:
        # Decoded for this call only: the redactor changes a copy.
        shown = redact(event_type, decoded, dict(headers))
        return shown if isinstance(shown, str) else json.dumps(shown, default=str, ensure_ascii=False)
    except Exception as error:
        # Only the class is logged: the text of the error may quote the payload.
        logging.getLogger(__name__).warning("the redactor failed: %s; the payload is hidden", type(error).__name__)
        return HIDDEN


def _decode(payload: bytes, content_type: str) -> Any:
    if content_type == "application/json":
        return json.loads(payload)
    return payload.decode() if content_type.startswith("text/") else payload
