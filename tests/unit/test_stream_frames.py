"""The frames around pgoutput, and the quoting of names: the pure part of the stream."""

from __future__ import annotations

import struct
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc_relay.lsn import Lsn
from cdc_relay.stream import Keepalive, XLogData, decode_frame, encode_status, quote_identifier, quote_literal
from outbox.errors import ProtocolError

POSITIONS = st.integers(0, 2**64 - 1).map(Lsn)
TIMES = st.integers(-(2**63), 2**63 - 1)


@given(POSITIONS, POSITIONS, TIMES, st.binary())
def test_data_is_decoded(start: Lsn, wal_end: Lsn, sent_at: int, payload: bytes) -> None:
    frame = b"w" + struct.pack(">QQq", start, wal_end, sent_at) + payload

    assert decode_frame(frame) == XLogData(wal_end, sent_at, payload)


@given(POSITIONS, TIMES, st.booleans())
def test_a_keepalive_is_decoded(wal_end: Lsn, sent_at: int, reply_requested: bool) -> None:
    frame = b"k" + struct.pack(">QqB", wal_end, sent_at, reply_requested)

    assert decode_frame(frame) == Keepalive(wal_end, sent_at, reply_requested)


@pytest.mark.parametrize("frame", [b"w" + bytes(24), b"k" + bytes(17)], ids=["data", "keepalive"])
def test_a_frame_cut_short_is_a_protocol_error(frame: bytes) -> None:
    decode_frame(frame)

    for length in range(len(frame)):
        with pytest.raises(ProtocolError):
            decode_frame(frame[:length])


def test_a_keepalive_with_garbage_after_it_is_a_protocol_error() -> None:
    with pytest.raises(ProtocolError):
        decode_frame(b"k" + bytes(18))


@given(st.binary())
def test_random_bytes_are_a_frame_or_a_protocol_error(frame: bytes) -> None:
    with suppress(ProtocolError):
        decode_frame(frame)


@given(POSITIONS, POSITIONS, st.booleans())
def test_a_status_says_what_is_written_flushed_and_applied(written: Lsn, flushed: Lsn, reply: bool) -> None:
    status = encode_status(written, flushed, reply)

    tag, *positions, sent_at, reply_requested = struct.unpack(">cQQQqB", status)
    assert tag == b"r"
    assert positions == [written, flushed, flushed]
    assert sent_at > 0
    assert reply_requested == reply


@given(st.text())
def test_a_quoted_name_or_text_ends_only_at_its_last_quote(text: str) -> None:
    for quoted, mark in ((quote_identifier(text), '"'), (quote_literal(text), "'")):
        assert quoted[0] == quoted[-1] == mark
        assert quoted[1:-1].replace(mark * 2, "").count(mark) == 0
        assert quoted[1:-1].replace(mark * 2, mark) == text
