"""
Decode pgoutput messages (protocol version 1, text or binary columns) into values.

Pure functions over bytes: no connection, no clock, no logging. Bytes that do not parse raise ProtocolError. Its text
never quotes them, because they are application data.

`decode` returns the message. It leaves an insert undecoded: a `RowReader`, built once per Relation message, reads the
wanted columns from it in one pass. Columns are found by name, so a table may gain, lose and reorder columns while the
stream runs. `column_types` lists the Python type of each column type; a null is None. Times are server times (see
storage.server_time).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import groupby
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from outrider.cdc_relay.column_types import Converter, converters
from outrider.errors import ProtocolError


class Begin(NamedTuple):
    final_lsn: int  # where the transaction's commit record starts: the commit_lsn of its Commit
    commit_time: int  # server time
    xid: int


class Commit(NamedTuple):
    commit_lsn: int
    end_lsn: int  # the position to confirm once every row of the transaction is settled
    commit_time: int  # server time


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    type_oid: int
    type_modifier: int
    is_key: bool  # part of the replica identity


@dataclass(frozen=True, slots=True)
class Relation:
    """The columns of a table; sent before its first row, and again after every change of them."""

    relation_id: int
    namespace: str
    name: str
    replica_identity: str  # pg_class.relreplident: d(efault), n(othing), f(ull), i(ndex)
    columns: tuple[Column, ...]


class Insert(Enum):
    """A row, not decoded: pass the message to a RowReader."""

    INSERT = b"I"


INSERT: Final = Insert.INSERT

PgoutputMessage = Begin | Commit | Relation | Insert

# Each step is a run of columns, or one column: whether it is wanted, and its conversions from binary and from text.
_Plan = list[tuple["_Run | None", bool, Converter, Converter]]


def decode(payload: bytes) -> PgoutputMessage | None:
    """Decode one message; None for the kinds that the relay ignores (update, delete, truncate, type, origin, ...)."""
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


class RowReader:
    """Reads the wanted columns, in the wanted order, from the inserts of one relation."""

    __slots__ = ("_constants", "_head", "_order", "_plan", "relation")

    def __init__(
        self,
        relation: Relation,
        wanted: Sequence[str],
        *,
        repeating: Collection[str] = (),
        defaults: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """
        Choose the conversions. Raises ProtocolError if the relation lacks a wanted column that has no default.

        repeating  columns that mostly hold the same value as in the previous row: adjacent ones are compared with its
                   bytes in one step, and read only if they differ
        defaults   values of columns that the relation may lack
        """
        found = [column.name for column in relation.columns if column.name in wanted]
        missing = [name for name in wanted if name not in found]
        if needed := [name for name in missing if name not in defaults]:
            raise ProtocolError(f"table {relation.namespace}.{relation.name} is published without {', '.join(needed)}")
        self._constants = [defaults[name] for name in missing]
        found += missing
        self.relation = relation
        self._head = _INSERT.pack(b"I", relation.relation_id, b"N", len(relation.columns))
        self._plan: _Plan = []
        for repeats, columns in groupby(relation.columns, lambda column: column.name in repeating):
            steps: _Plan = [(None, column.name in wanted, *converters(column.type_oid)) for column in columns]
            self._plan += [(_Run(steps), True, bytes, bytes)] if repeats else steps
        # None: the relation has all columns, in the wanted order.
        self._order = None if found == list(wanted) and not missing else [found.index(name) for name in wanted]

    def read(self, payload: bytes) -> tuple[Any, ...]:
        """The wanted values of one Insert message."""
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
        values += self._constants
        return tuple(values[position] for position in self._order)

    def _read_columns(self, plan: _Plan, payload: bytes, offset: int, values: list[Any]) -> int:
        """Append the wanted values; returns where the next column starts."""
        # Bounds are not checked column by column. Lengths are unsigned, so the offset only grows, and a length that
        # points past the message raises IndexError here or fails the comparison with the message's end in read().
        for run, is_wanted, from_binary, from_text in plan:
            if run is not None:
                if payload.startswith(run.raw, offset):
                    values += run.values
                    offset += len(run.raw)
                else:
                    start, count = offset, len(values)
                    offset = self._read_columns(run.plan, payload, offset, values)
                    if offset <= len(payload):
                        run.raw, run.values = payload[start:offset], values[count:]
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
    """Adjacent columns that are expected to repeat, with their bytes and values in the previous row."""

    __slots__ = ("plan", "raw", "values")

    def __init__(self, plan: _Plan) -> None:
        self.plan = plan
        self.raw = _NO_PREVIOUS_ROW
        self.values: list[Any] = []


# -- messages ----------------------------------------------------------------------------------------------------------

_BEGIN: Final = struct.Struct(">xQqI")
_COMMIT: Final = struct.Struct(">xBQQq")
_INSERT: Final = struct.Struct(">cIcH")
_REPLICA_IDENTITY: Final = struct.Struct(">cH")
_COLUMN_TYPE: Final = struct.Struct(">Ii")
_LENGTH: Final = struct.Struct(">I").unpack_from
_NULL: Final = ord("n")
_BINARY: Final = ord("b")
_TEXT: Final = ord("t")
_NO_PREVIOUS_ROW: Final = b"\xff"  # matches no row: it is not the kind byte of any column


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
    # pgoutput sends an empty namespace for pg_catalog.
    return Relation(relation_id, namespace or "pg_catalog", name, replica_identity.decode(), tuple(columns))


def _string(payload: bytes, start: int) -> tuple[str, int]:
    end = payload.index(b"\0", start)
    return payload[start:end].decode(), end + 1


_DECODERS: Final[dict[bytes, Callable[[bytes], PgoutputMessage]]] = {
    b"B": _begin,
    b"C": _commit,
    b"R": _relation,
}
_IGNORED: Final = frozenset({b"U", b"D", b"T", b"Y", b"O", b"M"})
