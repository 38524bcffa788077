"""Encoding of payloads, and errors that do not contain the payload."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from outrider.producer.encoding import check_json, encode_payload


class Colour(Enum):
    RED = "red"


class Size(StrEnum):
    SMALL = "s"


class Level(IntEnum):
    HIGH = 3


@dataclass
class Line:
    product: str
    price: Decimal


class Order(BaseModel):
    id: int
    placed: datetime


def decoded(payload: Any) -> Any:
    encoded = encode_payload(payload)
    assert (encoded.content_type, encoded.content_encoding) == ("application/json", "utf-8")
    return json.loads(encoded.payload)


def test_bytes_are_unchanged() -> None:
    for payload in (b"\x00\xff", bytearray(b"\x00\xff"), memoryview(b"\x00\xff")):
        assert encode_payload(payload) == (b"\x00\xff", "application/octet-stream", "binary")


def test_text_is_encoded_as_utf8() -> None:
    assert encode_payload("grün") == ("grün".encode(), "text/plain", "utf-8")


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        (None, None),
        (datetime(2030, 1, 1, tzinfo=UTC), "2030-01-01T00:00:00+00:00"),
        (date(2030, 1, 1), "2030-01-01"),
        (time(12, 30), "12:30:00"),
        (timedelta(minutes=1.5), 90.0),
        (Decimal("1.10"), "1.10"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (Colour.RED, "red"),
        (Size.SMALL, "s"),
        (Level.HIGH, 3),
        (Line("tea", Decimal("2.50")), {"product": "tea", "price": "2.50"}),
        ({"lines": [Line("tea", Decimal(2))]}, {"lines": [{"product": "tea", "price": "2"}]}),
        (Order(id=1, placed=datetime(2030, 1, 1, tzinfo=UTC)), {"id": 1, "placed": "2030-01-01T00:00:00Z"}),
        ([Order(id=1, placed=datetime(2030, 1, 1, tzinfo=UTC))], [{"id": 1, "placed": "2030-01-01T00:00:00Z"}]),
    ],
)
def test_types_that_json_lacks_are_encoded(payload: Any, expected: Any) -> None:
    assert decoded(payload) == expected


TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"))
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner),
)


@given(st.lists(JSON_VALUES) | st.dictionaries(TEXTS, JSON_VALUES))
def test_json_values_are_decoded_unchanged(payload: Any) -> None:
    assert decoded(payload) == payload


@pytest.mark.parametrize(
    "payload", [{"x": math.nan}, {"x": math.inf}, ["\ud800"], "\ud800", {"x": ["\0"]}, {"x": {"\0": 1}}]
)
def test_values_that_json_cannot_hold_are_refused(payload: Any) -> None:
    with pytest.raises(ValueError, match=r"."):
        encode_payload(payload)


def test_an_error_names_the_type_and_not_the_value() -> None:
    class Secret:
        def __repr__(self) -> str:
            return "hunter2"

    with pytest.raises(TypeError, match="Secret cannot be encoded") as raised:
        encode_payload({"password": Secret()})
    assert "hunter2" not in str(raised.value)


@given(st.text(), st.booleans())
def test_a_nul_and_a_surrogate_are_found_in_json_text_however_it_is_written(text: str, ascii_only: bool) -> None:
    storable = "\0" not in text and not any("\ud800" <= character <= "\udfff" for character in text)
    encoded = json.dumps({"x": [text]}, ensure_ascii=ascii_only)
    if storable:
        check_json("a header", encoded)
    else:
        with pytest.raises(ValueError, match=r"a header (must not contain a NUL|holds a lone surrogate)"):
            check_json("a header", encoded)


@pytest.mark.parametrize("text", ["\\u0000", "\\\\u0000", "\\ud800", "\U0001f600", "\\\U0001f600\\ud", "\ud7ff\ue000"])
def test_an_escaped_backslash_and_a_pair_of_surrogates_are_no_reason_to_refuse(text: str) -> None:
    for ascii_only in (True, False):
        check_json("a header", json.dumps([text], ensure_ascii=ascii_only))
