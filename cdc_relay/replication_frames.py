"""
The frames of the streaming replication protocol: decode what a server sends, encode the status it receives.

Pure functions over bytes, except that a status carries the local time. WAL positions are plain ints, because there is
one per message; `Lsn` prints them.
"""

from __future__ import annotations

import struct
import time
from typing import Final, NamedTuple

from outrider.errors import ProtocolError
from outrider.storage.server_time import from_unix_nanoseconds

_DATA: Final = b"w"
_DATA_HEADER: Final = struct.Struct(">x8xQq")  # two positions, equal in logical replication; the time
_KEEPALIVE: Final = b"k"
_KEEPALIVE_FRAME: Final = struct.Struct(">xQqB")
_STATUS: Final = struct.Struct(">cQQQqB")


class Keepalive(NamedTuple):
    wal_end: int  # the server has sent every change of the publication before this position
    reply_requested: bool  # send a status now, or the server closes the connection


class FrameBatch(NamedTuple):
    """The frames of one read."""

    messages: list[bytes]  # the pgoutput message of every data frame
    keepalive: Keepalive | None  # the last one; reply_requested if any of them requested a reply
    wal_end: int  # the server's position, from the last frame; 0 for a Relation message
    sent_at: int  # the server's clock, from the last frame: a server time


def decode_frames(frames: list[bytes]) -> FrameBatch:
    """Decode the frames that a server sends in COPY mode, and empty the list. Raises ProtocolError."""
    # A server sends two keepalives with each transaction to a client that has not confirmed everything. Position, clock
    # and keepalive are therefore evaluated once per batch.
    messages: list[bytes] = []
    keepalive_at: int | None = None
    reply_requested = False
    wal_end = sent_at = 0
    frame = b""
    frames.reverse()
    try:
        while frames:  # taken out, because a large frame and its message are two copies
            frame = frames.pop()
            if frame.startswith(_DATA):
                messages.append(frame[_DATA_HEADER.size :])
            elif frame.startswith(_KEEPALIVE):
                wal_end, sent_at, reply = _KEEPALIVE_FRAME.unpack(frame)
                keepalive_at, reply_requested = wal_end, reply_requested or reply != 0
            else:
                raise ProtocolError(f"unknown replication frame {frame[:1]!r}")
        if frame.startswith(_DATA):
            wal_end, sent_at = _DATA_HEADER.unpack_from(frame)
    except struct.error:
        raise ProtocolError(f"malformed replication frame of {len(frame)} bytes") from None
    keepalive = None if keepalive_at is None else Keepalive(keepalive_at, reply_requested)
    return FrameBatch(messages, keepalive, wal_end, sent_at)


def encode_status(flushed: int, reply: bool) -> bytes:
    """Encode a standby status update; the flushed position is also sent as the written and the applied one."""
    return _STATUS.pack(b"r", flushed, flushed, flushed, from_unix_nanoseconds(time.time_ns()), reply)
