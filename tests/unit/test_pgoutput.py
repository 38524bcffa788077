"""
The pgoutput decoder, against messages captured from servers and against messages encoded here.

Each capture holds, once with binary and once with text columns: one row of every type is inserted, updated, given
another key and deleted; the table is truncated; a logical message is written; and in a transaction of a replication
origin a column is dropped, one is added, and a second row is inserted. tests/fixtures/record_pgoutput.py records them.
"""

from __future__ import annotations

import struct
import uuid
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.cdc_relay.pgoutput import (
    INSERT,
    Begin,
    Column,
    Commit,
    PgoutputMessage,
    Relation,
    RowReader,
    decode,
)
from outrider.errors import ProtocolError
from outrider.storage.server_time import from_datetime, to_datetime
from tests.fixtures.postgres_versions import SUPPORTED

CAPTURES = sorted((Path(__file__).parent / "fixtures_pgoutput").glob("*.txt"))
HAPPENED_AT = datetime(2024, 2, 29, 12, 34, 56, 789012, tzinfo=UTC)
EVENT_ID = uuid.UUID("0b8d5f38-7d1c-4f6c-9a53-0a4ce3a9d6c1")
INFINITY = 2**63 - 1

ROW: dict[str, Any] = {
    "id": 2**63 - 1,
    "small": -2,
    "medium": 2**31 - 1,
    "flag": True,
    "label": "Grüße, 世界",
    "code": "código",
    "fixed": "ab ",
    "raw": b"\x00\xff\x10",
    "document": '{"b": 1, "a": [1, 2]}',
    "document_b": '{"a": [1, 2], "b": 1}',
    "event_id": str(EVENT_ID),
    "happened_at": from_datetime(HAPPENED_AT),
    "local_at": from_datetime(HAPPENED_AT),
    "never": INFINITY,
    "mood": b"calm",  # an enum: not a type the reader knows
    "grants": b"postgres=r/postgres",  # a type without a binary format
    "absent": None,
}


@dataclass(frozen=True)
class Capture:
    server: str
    column_format: str
    messages: list[bytes]

    def of(self, tag: bytes) -> list[bytes]:
        return [message for message in self.messages if message[:1] == tag]


def captures() -> Iterator[Capture]:
    for path in CAPTURES:
        messages: dict[str, list[bytes]] = defaultdict(list)
        for line in path.read_text().splitlines():
            if not line.startswith("#"):
                column_format, _, message = line.split()
                messages[column_format].append(bytes.fromhex(message))
        for column_format, captured in messages.items():
            yield Capture(path.stem, column_format, captured)


ALL_CAPTURES = list(captures())
every_capture = pytest.mark.parametrize("capture", ALL_CAPTURES, ids=lambda it: f"{it.server}-{it.column_format}")


def relation_of(payload: bytes) -> Relation:
    relation = decode(payload)
    assert isinstance(relation, Relation)
    return relation


def reader_of(relation: Relation) -> RowReader:
    """A reader of the columns of ROW that the relation has."""
    return RowReader(relation, [column.name for column in relation.columns if column.name in ROW])


def decode_as_the_relay(payload: bytes, readers: dict[bytes, RowReader]) -> PgoutputMessage | tuple[Any, ...] | None:
    """Decode a message, and read its row if it is an insert."""
    message = decode(payload)
    if message is INSERT:
        if payload[1:5] not in readers:
            raise ProtocolError("a row of an unknown relation")
        return readers[payload[1:5]].read(payload)
    return message


# -- captured messages -------------------------------------------------------------------------------------------------


def test_there_is_a_capture_of_each_format_from_every_server() -> None:
    assert [path.stem for path in CAPTURES] == [f"postgresql-{version}" for version in SUPPORTED]
    assert len(ALL_CAPTURES) == 2 * len(SUPPORTED)


@every_capture
def test_a_row_of_every_type_is_read(capture: Capture) -> None:
    reader = RowReader(relation_of(capture.of(b"R")[0]), list(ROW))

    assert reader.read(capture.of(b"I")[0]) == tuple(ROW.values())


@every_capture
def test_dropped_and_added_columns_are_found_by_name(capture: Capture) -> None:
    reader = RowReader(relation_of(capture.of(b"R")[-1]), ["extra", "id"])

    assert reader.read(capture.of(b"I")[-1]) == ("new", 3)


@every_capture
def test_a_relation_names_its_columns_and_their_types(capture: Capture) -> None:
    relation = relation_of(capture.of(b"R")[0])

    assert (relation.namespace, relation.name, relation.replica_identity) == ("public", "everything", "d")
    assert [column.name for column in relation.columns] == list(ROW)
    assert relation.columns[0] == Column("id", type_oid=20, type_modifier=-1, is_key=True)
    assert relation.columns[5] == Column("code", type_oid=1043, type_modifier=24, is_key=False)


@every_capture
def test_begin_and_commit_agree_on_their_transaction(capture: Capture) -> None:
    begins = [decode(message) for message in capture.of(b"B")]
    commits = [decode(message) for message in capture.of(b"C")]

    # Up to version 14 a server also sends transactions without published changes: here the one that sets up the origin.
    assert len(begins) == len(commits) == (8 if capture.server == "postgresql-14" else 7)
    for begin, commit in zip(begins, commits, strict=True):
        assert isinstance(begin, Begin)
        assert isinstance(commit, Commit)
        assert begin.final_lsn == commit.commit_lsn < commit.end_lsn
        assert begin.commit_time == commit.commit_time
        assert to_datetime(commit.commit_time).year in (
            2024,
            2026,
        )  # the year of the origin's time and of the recording
        assert begin.xid > 0


@every_capture
def test_messages_that_the_relay_ignores_decode_to_none(capture: Capture) -> None:
    skipped = [message[:1] for message in capture.messages if decode(message) is None]

    assert sorted(set(skipped)) == [b"D", b"M", b"O", b"T", b"U", b"Y"]


@every_capture
def test_a_message_cut_short_anywhere_is_a_protocol_error(capture: Capture) -> None:
    readers: dict[bytes, RowReader] = {}
    for message in capture.messages:
        if isinstance(relation := decode(message), Relation):
            readers[relation.relation_id.to_bytes(4)] = reader_of(relation)
        if decode_as_the_relay(message, readers) is None:
            continue
        for length in range(len(message)):
            with pytest.raises(ProtocolError):
                decode_as_the_relay(message[:length], readers)


@every_capture
def test_garbage_after_a_message_is_a_protocol_error(capture: Capture) -> None:
    readers: dict[bytes, RowReader] = {}
    for message in capture.messages:
        if isinstance(relation := decode(message), Relation):
            readers[relation.relation_id.to_bytes(4)] = reader_of(relation)
        if decode_as_the_relay(message, readers) is not None:
            with pytest.raises(ProtocolError):
                decode_as_the_relay(message + b"n", readers)


@given(st.sampled_from(ALL_CAPTURES), st.data())
def test_a_damaged_message_is_read_or_is_a_protocol_error(capture: Capture, data: st.DataObject) -> None:
    relation = relation_of(capture.of(b"R")[0])
    message = bytearray(data.draw(st.sampled_from(capture.of(b"I")[:1] + capture.of(b"R") + capture.of(b"C"))))
    for _ in range(data.draw(st.integers(1, 3))):
        message[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.integers(0, 255))

    for attempt in (decode, RowReader(relation, list(ROW)).read):
        with suppress(ProtocolError):
            attempt(bytes(message))


# -- messages encoded here ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    """A value in both formats."""

    type_oid: int
    value: Any
    binary: bytes
    text: bytes


def string(payload: str) -> bytes:
    return payload.encode() + b"\0"


def encode_relation(columns: list[tuple[str, int]], *, relation_id: int = 7, namespace: str = "public") -> bytes:
    head = b"R" + struct.pack(">I", relation_id) + string(namespace) + string("outbox") + b"d"
    parts = [b"\0" + string(name) + struct.pack(">Ii", type_oid, -1) for name, type_oid in columns]
    return head + struct.pack(">H", len(parts)) + b"".join(parts)


def encode_insert(cells: list[bytes], *, relation_id: int = 7) -> bytes:
    return b"I" + struct.pack(">I", relation_id) + b"N" + struct.pack(">H", len(cells)) + b"".join(cells)


def encode_cell(kind: bytes, content: bytes) -> bytes:
    return kind + struct.pack(">I", len(content)) + content


def integer_cells(type_oid: int, size: int) -> st.SearchStrategy[Cell]:
    bound = 2 ** (8 * size - 1)
    return st.integers(-bound, bound - 1).map(
        lambda n: Cell(type_oid, n, n.to_bytes(size, "big", signed=True), str(n).encode())
    )


def text_cell(type_oid: int, text: str) -> Cell:
    return Cell(type_oid, text, text.encode(), text.encode())


def timestamp_cell(moment: datetime) -> Cell:
    microseconds = (moment - datetime(2000, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    text = moment.isoformat(" ").removesuffix(":00")  # PostgreSQL prints +00
    if moment.microsecond:
        text = text.removesuffix("+00").rstrip("0") + "+00"
    return Cell(1184, microseconds, struct.pack(">q", microseconds), text.encode())


CELLS = st.one_of(
    integer_cells(21, 2),
    integer_cells(23, 4),
    integer_cells(20, 8),
    st.booleans().map(lambda flag: Cell(16, flag, bytes([flag]), b"t" if flag else b"f")),
    st.text().map(lambda text: text_cell(25, text)),
    st.text().map(lambda text: text_cell(1043, text)),
    st.binary().map(lambda raw: Cell(17, raw, raw, b"\\x" + raw.hex().encode())),
    st.text().map(lambda text: text_cell(114, text)),
    st.text().map(lambda text: Cell(3802, text, b"\x01" + text.encode(), text.encode())),
    st.uuids().map(lambda it: Cell(2950, str(it), it.bytes, str(it).encode())),
    st.datetimes(timezones=st.just(UTC)).map(timestamp_cell),
    st.binary().map(lambda raw: Cell(99999, raw, raw, raw)),
)
NAMES = st.text(st.characters(exclude_characters="\0", codec="utf-8"), min_size=1)


@given(
    st.dictionaries(NAMES, st.tuples(CELLS, st.sampled_from("btn")), max_size=12),
    st.randoms(use_true_random=False),
)
def test_any_row_is_read_in_any_wanted_order(row: dict[str, tuple[Cell, str]], random: Any) -> None:
    expected: dict[str, Any] = {}
    encoded = []
    for name, (cell, kind) in row.items():
        expected[name] = None if kind == "n" else cell.value
        content = cell.binary if kind == "b" else cell.text
        encoded.append(b"n" if kind == "n" else encode_cell(kind.encode(), content))
    wanted = [name for name in row if random.random() < 0.8]
    random.shuffle(wanted)
    relation = relation_of(encode_relation([(name, cell.type_oid) for name, (cell, _) in row.items()]))
    payload = encode_insert(encoded)

    assert decode(payload) is INSERT
    assert RowReader(relation, wanted).read(payload) == tuple(expected[name] for name in wanted)


# Few values, so that rows share some of them; one is the beginning of another, as after a truncation.
LABELS = st.sampled_from([None, "", "a", "ab", "abc"])


@given(
    st.lists(st.tuples(*[LABELS] * 5), min_size=1, max_size=8),
    st.sets(st.integers(0, 4)),
    st.sets(st.integers(0, 4)),
    st.data(),
)
def test_a_row_is_read_the_same_whatever_came_before_it(
    rows: list[tuple[str | None, ...]], repeating: set[int], unwanted: set[int], data: st.DataObject
) -> None:
    columns = [f"c{number}" for number in range(5)]
    wanted = [name for number, name in enumerate(columns) if number not in unwanted]
    relation = relation_of(encode_relation([(name, 25) for name in columns]))
    reader = RowReader(relation, wanted, repeating=[columns[number] for number in repeating])
    for row in rows:
        payload = encode_insert([b"n" if cell is None else encode_cell(b"b", cell.encode()) for cell in row])
        if data.draw(st.booleans()):
            with pytest.raises(ProtocolError):
                reader.read(payload[: data.draw(st.integers(0, len(payload) - 1))])
        assert reader.read(payload) == tuple(cell for cell, name in zip(row, columns, strict=True) if name in wanted)


@given(
    st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1), st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**32 - 1)
)
def test_any_begin_and_commit_are_read(lsn: int, end_lsn: int, time: int, xid: int) -> None:
    assert decode(b"B" + struct.pack(">QqI", lsn, time, xid)) == Begin(lsn, time, xid)
    assert decode(b"C\0" + struct.pack(">QQq", lsn, end_lsn, time)) == Commit(lsn, end_lsn, time)


@given(st.binary())
def test_random_bytes_are_read_or_are_a_protocol_error(payload: bytes) -> None:
    reader = RowReader(relation_of(encode_relation([("id", 20), ("label", 25)])), ["id", "label"])
    for attempt in (decode, reader.read):
        with suppress(ProtocolError):
            attempt(payload)


@given(st.sampled_from([b"B", b"C", b"R", b"I"]), st.binary())
def test_random_bytes_after_a_known_tag_are_read_or_are_a_protocol_error(tag: bytes, rest: bytes) -> None:
    with suppress(ProtocolError):
        decode(tag + rest)


@given(st.sampled_from([16, 17, 20, 21, 23, 25, 114, 1114, 1184, 2950, 3802]), st.sampled_from("btux"), st.binary())
def test_random_column_content_is_read_or_is_a_protocol_error(type_oid: int, kind: str, content: bytes) -> None:
    reader = RowReader(relation_of(encode_relation([("it", type_oid)])), ["it"])
    with suppress(ProtocolError):
        reader.read(encode_insert([encode_cell(kind.encode(), content)]))


# -- invalid messages --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tag", [b"", b"S", b"E", b"c", b"A", b"b", b"P", b"K", b"\0", b"z"])
def test_a_tag_of_another_protocol_version_is_refused(tag: bytes) -> None:
    with pytest.raises(ProtocolError, match="pgoutput message"):
        decode(tag + b"\0" * 20 if tag else b"")


def test_a_commit_with_unknown_flags_is_refused() -> None:
    with pytest.raises(ProtocolError, match="flags"):
        decode(b"C\x01" + bytes(24))


@pytest.mark.parametrize(
    ("type_oid", "cell"),
    [
        pytest.param(20, encode_cell(b"b", bytes(4)), id="an int8 of four bytes"),
        pytest.param(23, encode_cell(b"t", b"many"), id="an int4 that is no number"),
        pytest.param(16, encode_cell(b"b", b"\x02"), id="a bool that is neither true nor false"),
        pytest.param(25, encode_cell(b"b", b"\xff\xfe"), id="a text that is not UTF-8"),
        pytest.param(17, encode_cell(b"t", b"\\000"), id="a bytea in the escape format"),
        pytest.param(2950, encode_cell(b"b", bytes(15)), id="a uuid of 15 bytes"),
        pytest.param(2950, encode_cell(b"t", b"0b8d5f38"), id="half a uuid"),
        pytest.param(3802, encode_cell(b"b", b"\x02{}"), id="a jsonb of another version"),
        pytest.param(3802, encode_cell(b"b", b""), id="an empty jsonb"),
        pytest.param(1184, encode_cell(b"t", b"4713-01-01 00:00:00+00 BC"), id="a year before 1"),
        pytest.param(25, b"u", id="an unchanged value"),
        pytest.param(25, encode_cell(b"x", b"abc"), id="an unknown kind"),
        pytest.param(25, b"b\xff\xff\xff\xff", id="a length past the end"),
        pytest.param(25, b"nn", id="one value too many"),
        pytest.param(25, b"", id="one value too few"),
    ],
)
def test_a_malformed_column_is_refused_without_quoting_it(type_oid: int, cell: bytes) -> None:
    reader = RowReader(relation_of(encode_relation([("it", type_oid)])), ["it"])

    with pytest.raises(ProtocolError) as caught:
        reader.read(encode_insert([cell]))

    assert "many" not in str(caught.value)
    assert "0b8d" not in str(caught.value)
    assert (
        caught.value.__suppress_context__ or caught.value.__context__ is None
    )  # a chained exception would quote the value


def test_an_unwanted_column_is_not_converted() -> None:
    reader = RowReader(relation_of(encode_relation([("broken", 25), ("id", 23)])), ["id"])

    assert reader.read(encode_insert([encode_cell(b"b", b"\xff"), encode_cell(b"b", b"\0\0\0\x05")])) == (5,)


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(encode_insert([b"n"], relation_id=8), id="of another relation"),
        pytest.param(encode_insert([b"n", b"n"]), id="of more columns"),
        pytest.param(encode_insert([]), id="of fewer columns"),
        pytest.param(encode_insert([b"n"]).replace(b"N", b"O", 1), id="of an old tuple"),
    ],
)
def test_an_insert_that_does_not_fit_its_relation_is_refused(payload: bytes) -> None:
    reader = RowReader(relation_of(encode_relation([("it", 25)])), ["it"])

    with pytest.raises(ProtocolError, match="not an insert that matches its relation"):
        reader.read(payload)


def test_only_an_insert_can_be_read_as_a_row() -> None:
    reader = RowReader(relation_of(encode_relation([("it", 25)])), ["it"])

    with pytest.raises(ProtocolError, match="not an insert that matches its relation"):
        reader.read(b"U" + encode_insert([b"n"])[1:])


def test_a_wanted_column_that_is_not_published_is_named() -> None:
    relation = relation_of(encode_relation([("id", 20)]))

    with pytest.raises(ProtocolError, match=r"public\.outbox is published without payload, headers"):
        RowReader(relation, ["id", "payload", "headers"])


def test_an_empty_namespace_is_pg_catalog() -> None:
    assert relation_of(encode_relation([], namespace="")).namespace == "pg_catalog"


# -- values ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "value"), [(b"infinity", INFINITY), (b"-infinity", -INFINITY - 1)])
def test_infinity_in_text_is_infinity_in_binary(text: bytes, value: int) -> None:
    reader = RowReader(relation_of(encode_relation([("never", 1184)])), ["never"])

    assert reader.read(encode_insert([encode_cell(b"t", text)])) == (value,)
    assert reader.read(encode_insert([encode_cell(b"b", struct.pack(">q", value))])) == (value,)
