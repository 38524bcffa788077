"""
Convert the column values of pgoutput, in binary or text format, to Python values. Pure functions over bytes.

The result depends on the column's type alone, not on the format that the server chose:

    int2, int4, int8                int
    bool                            bool
    text, varchar, char, name       str
    bytea                           bytes
    json, jsonb                     bytes: the JSON text, not parsed
    uuid                            bytes: 16 of them; uuid_text() makes the usual form
    timestamptz, timestamp          int: a server time (see storage.server_time)
    anything else                   bytes, as sent

A value of the wrong length raises struct.error; a wrong value raises ValueError or LookupError.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from outrider.storage.server_time import from_datetime

Converter = Callable[[bytes], Any]


class Converters(NamedTuple):
    from_binary: Converter
    from_text: Converter


_INFINITY: Final = 2**63 - 1
_INT2: Final = struct.Struct(">h").unpack
_INT4: Final = struct.Struct(">i").unpack
_INT8: Final = struct.Struct(">q").unpack
_UUID: Final = struct.Struct("16s").unpack


def uuid_text(raw: bytes) -> str:
    """The 8-4-4-4-12 form of a uuid's 16 bytes, five times faster than uuid.UUID."""
    digits = raw.hex()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def _int2(raw: bytes) -> Any:
    return _INT2(raw)[0]


def _int4(raw: bytes) -> Any:
    return _INT4(raw)[0]


def _int8(raw: bytes) -> Any:
    return _INT8(raw)[0]


def _uuid(raw: bytes) -> Any:
    return _UUID(raw)[0]


def _uuid_from_text(raw: bytes) -> Any:
    return _uuid(bytes.fromhex(raw.decode().replace("-", "")))


def _bytea_from_text(raw: bytes) -> bytes:
    if raw[:2] != b"\\x":
        raise ValueError("bytea_output is not hex")
    return bytes.fromhex(raw[2:].decode())


def _jsonb(raw: bytes) -> bytes:
    if raw[:1] != b"\x01":
        raise ValueError("unknown version of the jsonb format")
    return raw[1:]


def _timestamp_from_text(raw: bytes) -> int:
    text = raw.decode()
    if text.endswith("infinity"):
        return -_INFINITY - 1 if text.startswith("-") else _INFINITY
    moment = datetime.fromisoformat(text)
    return from_datetime(moment if moment.tzinfo else moment.replace(tzinfo=UTC))


_STRING: Final = Converters(bytes.decode, bytes.decode)
_TIMESTAMP: Final = Converters(_int8, _timestamp_from_text)
_UUID_OID: Final = 2950
_UUID_BYTES: Final = Converters(_uuid, _uuid_from_text)
_UUID_TEXT: Final = Converters(lambda raw: uuid_text(_uuid(raw)), lambda raw: uuid_text(_uuid_from_text(raw)))
AS_SENT: Final = Converters(bytes, bytes)

# The OIDs are those of PostgreSQL's pg_type.dat; they never change.
_BY_OID: Final[dict[int, Converters]] = {
    16: Converters({b"\x00": False, b"\x01": True}.__getitem__, {b"f": False, b"t": True}.__getitem__),  # bool
    17: Converters(bytes, _bytea_from_text),  # bytea
    19: _STRING,  # name
    20: Converters(_int8, int),  # int8
    21: Converters(_int2, int),  # int2
    23: Converters(_int4, int),  # int4
    25: _STRING,  # text
    114: AS_SENT,  # json
    1042: _STRING,  # char(n)
    1043: _STRING,  # varchar
    1114: _TIMESTAMP,  # timestamp
    1184: _TIMESTAMP,  # timestamptz
    3802: Converters(_jsonb, bytes),  # jsonb
}


def converters(type_oid: int, *, uuids_as_text: bool) -> Converters:
    """The conversions of a column type; `uuids_as_text`: a uuid becomes a str."""
    if type_oid == _UUID_OID:
        return _UUID_TEXT if uuids_as_text else _UUID_BYTES
    return _BY_OID.get(type_oid, AS_SENT)
