"""
Turn a payload into bytes, with the content type and encoding that consumers see.

bytes stay as they are; str becomes UTF-8 text; a Pydantic model is encoded by its own method; everything else becomes
compact JSON, in which dataclasses are objects, dates and times ISO 8601 text, durations seconds, Decimal and UUID text,
and an Enum its value. A value that cannot be encoded raises TypeError or ValueError before anything is written; the
error never contains the value. Nothing here imports Pydantic: its models are recognised by their methods.
"""

from __future__ import annotations

import dataclasses
import json
import json.encoder
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
        return Encoded(_utf8(encode_json(payload)), JSON, "utf-8")
    if isinstance(payload, str) and not isinstance(payload, Enum):
        return Encoded(_utf8(payload), TEXT, "utf-8")
    if isinstance(payload, bytes | bytearray | memoryview):
        return Encoded(bytes(payload), BINARY, "binary")
    if _is_pydantic_model(payload):
        return Encoded(payload.model_dump_json().encode(), JSON, "utf-8")
    return Encoded(_utf8(encode_json(payload)), JSON, "utf-8")


def encode_json(value: Any) -> str:
    """Compact JSON. ValueError for NaN and infinity, which are not JSON."""
    try:
        return _encode(value)
    except RecursionError:
        raise ValueError("it is nested too deeply to be encoded as JSON") from None


def check_utf8(name: str, text: str) -> None:
    """ValueError for a lone surrogate, which a str can hold but UTF-8, and so PostgreSQL, cannot."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ValueError(f"{name} holds a lone surrogate, which UTF-8 cannot encode") from None


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
