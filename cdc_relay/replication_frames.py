"""
The frames around pgoutput's messages: what a server in replication mode sends, and the status that it is sent.

Pure functions over bytes, like pgoutput's. Positions in the WAL are plain ints, as in everything of which there is one
for each message; `Lsn` prints them.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterable
from typing import Final, NamedTuple

from outrider.errors import ProtocolError

_DATA: Final = b"w"
_DATA_HEADER: Final = struct.Struct(">x8xQq")  # two positions, which are the same in logical replication; the time
_KEEPALIVE: Final = b"k"
_KEEPALIVE_FRAME: Final = struct.Struct(">xQqB")
_STATUS: Final = struct.Struct(">cQQQqB")
_EPOCH_MICROSECONDS: Final = 946_684_800_000_000  # 2000-01-01 on the Unix clock


class Keepalive(NamedTuple):
    """The server is alive, and how far it has come."""

    wal_end: int  # every change before it has been sent, or is of no interest to the publication
    reply_requested: bool  # send a status now, or the server cuts the connection


class Arrival(NamedTuple):
    """What some frames brought: one after the other, or in the last of them."""

    messages: list[bytes]  # pgoutput's, all of them
    keepalive: Keepalive | None  # the last; it asks for a reply if any did
    wal_end: int  # how far the server is; 0 for a Relation message
    sent_at: int  # the server's clock (a server time: see pgoutput)


def decode_frames(frames: Iterable[bytes]) -> Arrival:
    """Decode what a server sends in COPY mode."""
    # To a client that has not confirmed everything a server sends two keepalives with each transaction. That, and what
    # a frame says of the server, matters once for all that came together.
    messages: list[bytes] = []
    heard: int | None = None
    asked = False
    wal_end = sent_at = 0
    frame = b""
    try:
        for frame in frames:
            if frame.startswith(_DATA):
                messages.append(frame[_DATA_HEADER.size :])
            elif frame.startswith(_KEEPALIVE):
                wal_end, sent_at, reply_requested = _KEEPALIVE_FRAME.unpack(frame)
                heard, asked = wal_end, asked or reply_requested != 0
            else:
                raise ProtocolError(f"unknown replication frame {frame[:1]!r}")
        if frame.startswith(_DATA):
            wal_end, sent_at = _DATA_HEADER.unpack_from(frame)
    except struct.error:
        raise ProtocolError(f"malformed replication frame of {len(frame)} bytes") from None
    return Arrival(messages, None if heard is None else Keepalive(heard, asked), wal_end, sent_at)


def encode_status(written: int, flushed: int, reply: bool) -> bytes:
    """Encode a standby status update; what is flushed counts as applied."""
    now = time.time_ns() // 1000 - _EPOCH_MICROSECONDS
    return _STATUS.pack(b"r", written, flushed, flushed, now, reply)
