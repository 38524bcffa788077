"""The frames of the replication protocol."""

from __future__ import annotations

import struct
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.cdc_relay.pgoutput import decode
from outrider.cdc_relay.replication_frames import FrameBatch, Keepalive, decode_frames, encode_status
from outrider.errors import ProtocolError

POSITIONS = st.integers(0, 2**64 - 1)
TIMES = st.integers(-(2**63), 2**63 - 1)


def data_frame(start: int, wal_end: int, sent_at: int, payload: bytes) -> bytes:
    return b"w" + struct.pack(">QQq", start, wal_end, sent_at) + payload


def keepalive_frame(wal_end: int, sent_at: int, reply_requested: bool) -> bytes:
    return b"k" + struct.pack(">QqB", wal_end, sent_at, reply_requested)


@given(POSITIONS, POSITIONS, TIMES, st.binary())
def test_data_is_decoded(start: int, wal_end: int, sent_at: int, payload: bytes) -> None:
    assert decode_frames([data_frame(start, wal_end, sent_at, payload)]) == FrameBatch(
        [payload], None, wal_end, sent_at
    )


@given(POSITIONS, TIMES, st.booleans())
def test_a_keepalive_is_decoded(wal_end: int, sent_at: int, reply_requested: bool) -> None:
    frame = keepalive_frame(wal_end, sent_at, reply_requested)

    assert decode_frames([frame]) == FrameBatch([], Keepalive(wal_end, reply_requested), wal_end, sent_at)


DATA = st.tuples(st.just("data"), POSITIONS, TIMES, st.binary())
KEEPALIVES = st.tuples(st.just("keepalive"), POSITIONS, TIMES, st.booleans())


@given(st.lists(st.one_of(DATA, KEEPALIVES), min_size=1))
def test_a_batch_has_all_messages_and_the_last_keepalive(items: list[Any]) -> None:
    batch = decode_frames(
        [
            data_frame(wal_end, wal_end, sent_at, rest) if kind == "data" else keepalive_frame(wal_end, sent_at, rest)
            for kind, wal_end, sent_at, rest in items
        ]
    )

    keepalives = [item for item in items if item[0] == "keepalive"]
    assert batch.messages == [payload for kind, _, _, payload in items if kind == "data"]
    assert batch.keepalive == (
        Keepalive(keepalives[-1][1], any(reply_requested for *_, reply_requested in keepalives)) if keepalives else None
    )
    assert (batch.wal_end, batch.sent_at) == items[-1][1:3]


@pytest.mark.parametrize("frame", [b"w" + bytes(24), b"k" + bytes(17)], ids=["data", "keepalive"])
def test_a_frame_cut_short_is_a_protocol_error(frame: bytes) -> None:
    decode_frames([frame])

    for length in range(len(frame)):
        with pytest.raises(ProtocolError):
            decode_frames([frame[:length]])


def test_a_data_frame_cut_short_before_another_yields_a_message_that_does_not_decode() -> None:
    whole = b"w" + bytes(24)
    for length in range(1, len(whole)):
        cut_short, _ = decode_frames([whole[:length], whole + b"B"]).messages
        with pytest.raises(ProtocolError):
            decode(cut_short)


def test_a_keepalive_with_garbage_after_it_is_a_protocol_error() -> None:
    with pytest.raises(ProtocolError):
        decode_frames([b"k" + bytes(18)])


@given(st.binary())
def test_random_bytes_are_a_frame_or_a_protocol_error(frame: bytes) -> None:
    with suppress(ProtocolError):
        decode_frames([frame])


@given(POSITIONS, st.booleans())
def test_a_status_holds_the_flushed_position_as_written_flushed_and_applied(flushed: int, reply: bool) -> None:
    status = encode_status(flushed, reply)

    tag, *positions, sent_at, reply_requested = struct.unpack(">cQQQqB", status)
    assert tag == b"r"
    assert positions == [flushed] * 3
    assert sent_at > 0
    assert reply_requested == reply
