"""
Turn a payload into bytes, with the content type and encoding that consumers see.

bytes stay as they are; str becomes UTF-8 text; a Pydantic model is encoded by its own method; everything else becomes
compact JSON, in which dataclasses are objects, dates and times ISO 8601 text, durations seconds, Decimal and UUID text,
and an Enum its value. A value that cannot be encoded raises TypeError or ValueError before anything is written; the
error never contains the value. So does a NUL in JSON, which PostgreSQL's jsonb and many consumers refuse; a payload
that needs one is given as bytes. Nothing here imports Pydantic: its models are recognised by their methods.
"""

from __future__ import annotations

import dataclasses
import json
import json.encoder
import re
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, NamedTuple
from uuid import UUID

JSON = "application/json"
TEXT = "text/plain"
BINARY = "application/octet-stream"


class Encoded(NamedTuple):
    payload: bytes
    content_type: str
    content_encoding: str


def encode_payload(payload: Any) -> Encoded:
    """The payload, content type and content encoding of the row."""
    if type(payload) is dict:  # the usual case
        return Encoded(_json_bytes(encode_json(payload)), JSON, "utf-8")
    if isinstance(payload, str) and not isinstance(payload, Enum):
        return Encoded(_utf8(payload), TEXT, "utf-8")
    if isinstance(payload, bytes | bytearray | memoryview):
        return Encoded(bytes(payload), BINARY, "binary")
    if _is_pydantic_model(payload):
        return Encoded(_json_bytes(payload.model_dump_json()), JSON, "utf-8")
    return Encoded(_json_bytes(encode_json(payload)), JSON, "utf-8")


def encode_json(value: Any) -> str:
    """Compact JSON. ValueError for NaN and infinity, which are not JSON."""
    try:
        return _encode(value)
    except RecursionError:
        raise ValueError("it is nested too deeply to be encoded as JSON") from None


def check_text(name: str, value: Any, shortest: int = 1, longest: int | None = None) -> str:
    """The value, if it is text that the column and the broker can hold; TypeError or ValueError otherwise."""
    # The usual case. No limit is below 255 bytes.
    if type(value) is str and shortest <= len(value) < 64 and value.isascii() and "\0" not in value:
        return value
    if not isinstance(value, str):
        raise TypeError(f"{name} is a str, not {type(value).__qualname__}")
    if "\0" in value:
        raise ValueError(f"{name} must not contain a NUL character")
    check_utf8(name, value)
    # A character takes at most four bytes: encode only text that could be too long.
    if len(value) < shortest or (longest is not None and len(value) * 4 > longest and len(value.encode()) > longest):
        allowed = "must not be empty" if longest is None else f"must be {shortest} to {longest} bytes"
        raise ValueError(f"{name} {allowed}")
    return value


def check_utf8(name: str, text: str) -> None:
    """ValueError for a lone surrogate, which a str can hold but UTF-8, and so PostgreSQL, cannot."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ValueError(f"{name} holds a lone surrogate, which UTF-8 cannot encode") from None


def check_json(name: str, text: str) -> None:
    """ValueError for a NUL or a lone surrogate anywhere in JSON text, escaped or not."""
    check_escapes(name, text)
    check_utf8(name, text)


def check_escapes(name: str, text: str) -> None:
    # The text is searched, because walking the value would take longer than encoding it.
    if "\\u" in text and ("\\u0000" in text or "\\ud" in text):
        for escape in _ESCAPES.finditer(text):
            if escape["nul"]:
                raise ValueError(f"{name} must not contain a NUL character")
            if escape["lone"]:
                raise ValueError(f"{name} holds a lone surrogate, which UTF-8 cannot encode")


_ESCAPES = re.compile(r"\\(?:(?P<nul>u0000)|ud[89ab][0-9a-f]{2}\\ud[c-f][0-9a-f]{2}|(?P<lone>ud[89a-f][0-9a-f]{2})|.)")
"""Every escape of JSON, so that an escaped backslash is not taken for the start of the next one."""


def _json_bytes(text: str) -> bytes:
    check_escapes("the payload", text)
    return _utf8(text)


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise ValueError("the payload holds a lone surrogate, which UTF-8 cannot encode: send bytes") from None


def _encode_other(value: Any) -> Any:
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, UUID | Decimal):
        return str(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, timedelta):
        return value.total_seconds()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if _is_pydantic_model(value):
        return value.model_dump(mode="json")
    raise TypeError(f"a payload of type {type(value).__qualname__} cannot be encoded as JSON")


def _is_pydantic_model(value: Any) -> bool:
    return hasattr(type(value), "model_dump_json") and hasattr(type(value), "model_dump")


def quick_encoder(encoder: json.JSONEncoder) -> Callable[[Any], str]:
    """
    The same as `encoder.encode`, a third faster for small values: `encode` makes a C encoder for every call, this makes
    it once. A value that contains itself raises RecursionError. Without the C encoder, this is `encode` itself.
    """
    set_up = getattr(json.encoder, "c_make_encoder", None)
    if set_up is None:
        return encoder.encode
    text: Any = json.encoder.encode_basestring_ascii if encoder.ensure_ascii else json.encoder.encode_basestring
    run = set_up(
        *(None, encoder.default, text, encoder.indent, encoder.key_separator, encoder.item_separator),
        *(encoder.sort_keys, encoder.skipkeys, encoder.allow_nan),
    )
    return lambda value: "".join(run(value, 0))


_encode = quick_encoder(
    json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False, default=_encode_other)
)
