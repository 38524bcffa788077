"""
Decode pgoutput messages (protocol version 1, text or binary columns) into values.

Pure functions over bytes: no connection, no clock, no logging. Bytes that do not parse raise ProtocolError, whose
message never quotes them: they are somebody's data.

`decode` tells what a message is. An insert stays undecoded until a `RowReader`, built once per Relation message, reads
the wanted columns from it in one pass. Columns are found by name, so a table may gain, lose and reorder columns
while the stream runs. What a column becomes depends on its type alone, not on the format the server chose:

    int2, int4, int8                int
    bool                            bool
    text, varchar, char, name       str
    bytea                           bytes
    json, jsonb                     bytes, the JSON text: whoever needs it parses it
    uuid                            bytes, the 16 of them: uuid_text() makes the usual form
    timestamptz, timestamp          int, a server time
    anything else                   bytes, as sent
    null, or no such column         None

A *server time* is the server's own unit: microseconds since 2000-01-01 UTC. Row columns, commit times and the clock
in every XLogData and keepalive message all count in it, so they compare without a conversion.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from itertools import groupby
from typing import Any, Final, NamedTuple

from outrider.errors import ProtocolError

_EPOCH: Final = datetime(2000, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_EARLIEST: Final = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND
_LATEST: Final = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND
_INFINITY: Final = 2**63 - 1


class Begin(NamedTuple):
    final_lsn: int  # where the transaction's commit record starts: the commit_lsn of its Commit
    commit_time: int  # server time
    xid: int


class Commit(NamedTuple):
    commit_lsn: int
    end_lsn: int  # what to confirm once every row of the transaction is settled
    commit_time: int  # server time


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    type_oid: int
    type_modifier: int
    is_key: bool  # part of the replica identity


@dataclass(frozen=True, slots=True)
class Relation:
    """What the next rows of a table look like; sent before the first one, and again after every change."""

    relation_id: int
    namespace: str
    name: str
    replica_identity: str  # pg_class.relreplident: d(efault), n(othing), f(ull), i(ndex)
    columns: tuple[Column, ...]


class Insert(Enum):
    """A row: the message itself is what a RowReader reads."""

    INSERT = b"I"


INSERT: Final = Insert.INSERT

Message = Begin | Commit | Relation | Insert

_Converter = Callable[[bytes], Any]
# Per step a run, or a column: whether it is wanted, and how it is converted from binary and from text.
_Plan = list[tuple["_Run | None", bool, _Converter, _Converter]]


def decode(payload: bytes) -> Message | None:
    """Decode one message; None for the kinds an outbox has no use for (update, delete, truncate, type, origin, ...)."""
    tag = payload[:1]
    if tag == b"I":
        return INSERT
    if tag in _IGNORED:
        return None
    decoder = _DECODERS.get(tag)
    if decoder is None:
        raise ProtocolError(f"unknown pgoutput message {tag!r}" if tag else "an empty pgoutput message")
    try:
        return decoder(payload)
    except (struct.error, ValueError, LookupError):
        raise ProtocolError(f"malformed pgoutput message {tag!r} of {len(payload)} bytes") from None


def relation_id_of(insert: bytes) -> int:
    """The relation whose row it is."""
    try:
        relation_id: int = _INSERT_RELATION.unpack_from(insert)[0]
    except struct.error:
        raise ProtocolError(f"malformed insert of {len(insert)} bytes") from None
    return relation_id


def to_datetime(server_time: int) -> datetime:
    """The datetime of a server time; what lies outside Python's years (also infinity) becomes its first or last."""
    return _EPOCH + timedelta(microseconds=min(max(server_time, _EARLIEST), _LATEST))


def from_datetime(moment: datetime) -> int:
    """The server time of an aware datetime."""
    return (moment - _EPOCH) // _MICROSECOND


def uuid_text(raw: bytes) -> str:
    """The 8-4-4-4-12 form of a uuid's 16 bytes; a fifth of the price of a uuid.UUID."""
    digits = raw.hex()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


class RowReader:
    """Reads the wanted columns, in the wanted order, from the inserts of one relation."""

    __slots__ = ("_head", "_order", "_plan", "relation")

    def __init__(
        self,
        relation: Relation,
        wanted: Sequence[str],
        *,
        required: Collection[str] = (),
        repeating: Collection[str] = (),
        uuids_as_text: bool = False,
    ) -> None:
        """
        Choose the conversions; a required column that the relation lacks is a ProtocolError.

        repeating  columns that hold, more often than not, what they held in the row before: neighbours among them are
                   compared with that in one go, and read only if they differ
        """
        names = {column.name for column in relation.columns}
        if missing := [name for name in required if name not in names]:
            raise ProtocolError(
                f"table {relation.namespace}.{relation.name} is published without {', '.join(missing)}: "
                "migrate the schema, or add the columns to the publication"
            )
        self.relation = relation
        self._head = _INSERT.pack(b"I", relation.relation_id, b"N", len(relation.columns))
        converters = _CONVERTERS | ({_UUID_OID: _UUID_AS_TEXT} if uuids_as_text else {})
        self._plan: _Plan = []
        for repeats, columns in groupby(relation.columns, lambda column: column.name in repeating):
            steps: _Plan = [
                (None, column.name in wanted, *converters.get(column.type_oid, _AS_SENT)) for column in columns
            ]
            self._plan += [(_Run(steps), True, *_AS_SENT)] if repeats else steps
        found = [column.name for column in relation.columns if column.name in wanted]
        # None: the columns come in the order that is wanted.
        self._order = None if found == list(wanted) else [found.index(it) if it in found else None for it in wanted]

    def read(self, payload: bytes) -> tuple[Any, ...]:
        """The wanted values of one Insert message; the types are in the table at the top of this module."""
        if not payload.startswith(self._head):
            raise ProtocolError(f"not an insert that matches its relation {self.relation.name}")
        values: list[Any] = []
        try:
            end = self._read_columns(self._plan, payload, len(self._head), values)
        except (struct.error, ValueError, LookupError):
            raise ProtocolError(f"malformed insert into {self.relation.name} of {len(payload)} bytes") from None
        if end != len(payload):
            raise ProtocolError(f"an insert into {self.relation.name} of {len(payload)} bytes should have {end}")
        if self._order is None:
            return tuple(values)
        return tuple(None if position is None else values[position] for position in self._order)

    def _read_columns(self, plan: _Plan, payload: bytes, offset: int, values: list[Any]) -> int:
        """Append the wanted values; returns where the next column starts."""
        # Bounds are not checked column by column: lengths are unsigned, so the offset only grows, and a length that
        # leads out of the message ends in an IndexError here or in a comparison with the end of the message.
        for run, is_wanted, from_binary, from_text in plan:
            if run is not None:
                if payload.startswith(run.before, offset):
                    values += run.values
                    offset += len(run.before)
                else:
                    start, count = offset, len(values)
                    offset = self._read_columns(run.plan, payload, offset, values)
                    if offset <= len(payload):
                        run.before, run.values = payload[start:offset], values[count:]
                continue
            kind = payload[offset]
            if kind == _NULL:
                offset += 1
                if is_wanted:
                    values.append(None)
                continue
            start = offset + 5
            offset = start + _LENGTH(payload, offset + 1)[0]
            if kind == _BINARY:
                if is_wanted:
                    values.append(from_binary(payload[start:offset]))
            elif kind == _TEXT:
                if is_wanted:
                    values.append(from_text(payload[start:offset]))
            else:
                raise ProtocolError(f"column kind {chr(kind)!r} in an insert into {self.relation.name}")
        return offset


class _Run:
    """Columns side by side that are expected to repeat, and what they held in the row before."""

    __slots__ = ("before", "plan", "values")

    def __init__(self, plan: _Plan) -> None:
        self.plan = plan
        self.before = _NOTHING_YET
        self.values: list[Any] = []


# -- messages ----------------------------------------------------------------------------------------------------------

_BEGIN: Final = struct.Struct(">xQqI")
_COMMIT: Final = struct.Struct(">xBQQq")
_INSERT: Final = struct.Struct(">cIcH")
_INSERT_RELATION: Final = struct.Struct(">xI")
_REPLICA_IDENTITY: Final = struct.Struct(">cH")
_COLUMN_TYPE: Final = struct.Struct(">Ii")
_LENGTH: Final = struct.Struct(">I").unpack_from
_NULL: Final = ord("n")
_BINARY: Final = ord("b")
_TEXT: Final = ord("t")
_NOTHING_YET: Final = b"\xff"  # not the kind of any column


def _begin(payload: bytes) -> Begin:
    return Begin(*_BEGIN.unpack(payload))


def _commit(payload: bytes) -> Commit:
    flags, commit_lsn, end_lsn, commit_time = _COMMIT.unpack(payload)
    if flags:
        raise ProtocolError(f"a commit with unknown flags {flags:#x}")
    return Commit(commit_lsn, end_lsn, commit_time)


def _relation(payload: bytes) -> Relation:
    (relation_id,) = _LENGTH(payload, 1)
    namespace, offset = _string(payload, 5)
    name, offset = _string(payload, offset)
    replica_identity, column_count = _REPLICA_IDENTITY.unpack_from(payload, offset)
    offset += _REPLICA_IDENTITY.size
    columns = []
    for _ in range(column_count):
        flags = payload[offset]
        column_name, offset = _string(payload, offset + 1)
        type_oid, type_modifier = _COLUMN_TYPE.unpack_from(payload, offset)
        offset += _COLUMN_TYPE.size
        columns.append(Column(column_name, type_oid, type_modifier, bool(flags & 1)))
    if offset != len(payload):
        raise ProtocolError(f"a relation message of {len(payload)} bytes should have {offset}")
    # An empty namespace stands for pg_catalog.
    return Relation(relation_id, namespace or "pg_catalog", name, replica_identity.decode(), tuple(columns))


def _string(payload: bytes, start: int) -> tuple[str, int]:
    end = payload.index(b"\0", start)
    return payload[start:end].decode(), end + 1


_DECODERS: Final[dict[bytes, Callable[[bytes], Message]]] = {
    b"B": _begin,
    b"C": _commit,
    b"R": _relation,
}
_IGNORED: Final = frozenset({b"U", b"D", b"T", b"Y", b"O", b"M"})


# -- column types ------------------------------------------------------------------------------------------------------
# One pair per type: from binary, from text. A wrong length is a struct.error, a wrong value ValueError or LookupError.

_INT2: Final = struct.Struct(">h").unpack
_INT4: Final = struct.Struct(">i").unpack
_INT8: Final = struct.Struct(">q").unpack
_UUID: Final = struct.Struct("16s").unpack


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
        raise ValueError("a version of jsonb that nobody has seen yet")
    return raw[1:]


def _timestamp_from_text(raw: bytes) -> int:
    text = raw.decode()
    if text.endswith("infinity"):
        return -_INFINITY - 1 if text.startswith("-") else _INFINITY
    moment = datetime.fromisoformat(text)
    return from_datetime(moment if moment.tzinfo else moment.replace(tzinfo=UTC))


_AS_SENT: Final[tuple[_Converter, _Converter]] = (bytes, bytes)
_STRING: Final[tuple[_Converter, _Converter]] = (bytes.decode, bytes.decode)
_TIMESTAMP: Final[tuple[_Converter, _Converter]] = (_int8, _timestamp_from_text)
_UUID_AS_TEXT: Final[tuple[_Converter, _Converter]] = (
    lambda raw: uuid_text(_uuid(raw)),
    lambda raw: uuid_text(_uuid_from_text(raw)),
)
_UUID_OID: Final = 2950

# The OIDs are those of PostgreSQL's pg_type.dat; they never change.
_CONVERTERS: Final[dict[int, tuple[_Converter, _Converter]]] = {
    16: ({b"\x00": False, b"\x01": True}.__getitem__, {b"f": False, b"t": True}.__getitem__),  # bool
    17: (bytes, _bytea_from_text),  # bytea
    19: _STRING,  # name
    20: (_int8, int),  # int8
    21: (_int2, int),  # int2
    23: (_int4, int),  # int4
    25: _STRING,  # text
    114: _AS_SENT,  # json
    1042: _STRING,  # char(n)
    1043: _STRING,  # varchar
    1114: _TIMESTAMP,  # timestamp
    1184: _TIMESTAMP,  # timestamptz
    _UUID_OID: (_uuid, _uuid_from_text),
    3802: (_jsonb, bytes),  # jsonb
}
