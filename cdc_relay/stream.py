"""
The replication connection: the only module that speaks the streaming replication protocol.

One thread owns a stream, waits for its socket and calls `read`. After `start`, the methods `read`, `send_status` and
`flush` never block. Every failure of the connection (a refused start, the end of the stream, a lost network) raises
ReplicationError, with the SQLSTATE if the server sent one. A refused start may be repeated; after any other error,
close the stream. Frames that do not parse raise ProtocolError.

Usage:

    stream = ReplicationStream.open(dsn)
    stream.start("outrider", "outrider")
    while True:
        batch = stream.read(500)
        ...
        stream.send_status(flushed=...)
        if not stream.has_more:
            select.select([stream], [stream] if stream.wants_write else [], [], 1.0)

psycopg has no replication API. Its connection provides hosts, timeouts and TLS, and its libpq wrapper provides COPY.
"""

from __future__ import annotations

import os
import selectors
import time
from typing import Any, Final, Self

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import DiagnosticField, ExecStatus
from psycopg.pq.abc import PGconn, PGresult

from outrider.cdc_relay.replication_frames import FrameBatch, decode_frames, encode_status
from outrider.errors import ReplicationError
from outrider.storage.quoting import quote_identifier, quote_replication_literal

_UNDEFINED_OBJECT: Final = "42704"

# How many consume_input calls in a row must bring no frame before the input counts as exhausted. TLS and GSSAPI buffer
# up to one decrypted record (16 kB), and libpq takes at least 8 kB of it per call: the rest of one record and both
# halves of the next are three calls. Only after these does further data make the socket readable. A plain socket is
# readable for as long as it has data.
_EMPTY_READS: Final = 3
_EMPTY_READS_UNENCRYPTED: Final = 1

# libpq reads at least this much from a plain socket per call: a call that brought less has emptied the socket.
_LEAST_READ_BYTES: Final = 8 * 1024


class ReplicationStream:
    """A connection in replication mode; streaming after start()."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        """Take over a connection that was opened with replication=database."""
        self._connection = connection
        self._pgconn: PGconn = connection.pgconn
        self._pgconn.nonblocking = 1
        connection.add_notice_handler(self._notice)
        self._publication_missing: ReplicationError | None = None
        self._streaming = False
        self._unsent: tuple[int, bool] | None = None
        self._unflushed = False
        encrypted = self._pgconn.ssl_in_use or self._pgconn.used_gssapi
        self._max_empty_reads = _EMPTY_READS if encrypted else _EMPTY_READS_UNENCRYPTED
        self._least_read_bytes = 0 if encrypted else _LEAST_READ_BYTES
        self.has_more = False
        self.last_heard = time.monotonic()

    @classmethod
    def open(cls, conninfo: str, *, connect_timeout_seconds: int = 10) -> Self:
        """
        Connect in replication mode. All libpq options in `conninfo` and in the environment apply; the timeout (for each
        host) and the application name are defaults.
        """
        try:
            options: dict[str, str | int] = {
                "replication": "database",
                "client_encoding": "UTF8",  # of names and text, whatever the encoding of the database
                "fallback_application_name": "outrider-relay",
            }
            if "connect_timeout" not in conninfo_to_dict(conninfo) and "PGCONNECT_TIMEOUT" not in os.environ:
                options["connect_timeout"] = connect_timeout_seconds
            connection = psycopg.connect(make_conninfo(conninfo, **options), autocommit=True)
        except psycopg.Error as error:
            message = f"cannot open a replication connection: {_one_line(error)}"
            raise ReplicationError(message, sqlstate=error.sqlstate) from error
        return cls(connection)

    def start(self, slot: str, publication: str, *, timeout_seconds: float = 30.0) -> None:
        """Start streaming from the slot's confirmed position."""
        # publication_names is a literal that holds a list of identifiers, hence quoted twice. The replication grammar
        # has no escape for a double quote: a slot name with one (no server accepts it) is a syntax error.
        command = (
            f"START_REPLICATION SLOT {quote_identifier(slot)} LOGICAL 0/0 (proto_version '1', "
            f"publication_names {quote_replication_literal(quote_identifier(publication))}, binary 'true')"
        )
        deadline = time.monotonic() + timeout_seconds
        refusal: PGresult | None = None
        try:
            self._pgconn.send_query(command.encode())
            while (result := self._next_result(deadline)) is not None:
                if result.status == ExecStatus.COPY_BOTH:
                    self._streaming = True
                    self.last_heard = time.monotonic()
                    return
                refusal = refusal or result
        except psycopg.Error as error:
            raise self._failure(error) from error
        raise ReplicationError("the server did not start to stream") if refusal is None else _server_error(refusal)

    def fileno(self) -> int:
        """The socket, for select. libpq may hold frames although the socket is not readable: see has_more."""
        try:
            return self._pgconn.socket
        except psycopg.Error as error:
            raise self._failure(error) from error

    def read(self, limit: int, *, max_bytes: int = 8 * 1024 * 1024) -> FrameBatch | None:
        """
        Return the frames that have arrived, or None: at most `limit`, and no more after `max_bytes`. If one of these
        ended the read, has_more is true: read again before waiting for the socket. Frames that arrived together with
        an error are dropped: they are not confirmed, so the server sends them again.
        """
        frames: list[bytes] = []
        get_copy_data = self._pgconn.get_copy_data
        byte_count = fresh_bytes = empty_reads = 0
        had_more, self.has_more = self.has_more, False
        try:
            if not had_more:  # the last read left nothing in libpq
                empty_reads = 1
                self._pgconn.consume_input()
            while True:
                size, frame = get_copy_data(1)
                if size > 0:
                    frames.append(frame.tobytes())
                    empty_reads = 0
                    byte_count += size
                    fresh_bytes += size
                    if len(frames) >= limit or byte_count >= max_bytes:
                        self.has_more = True
                        break
                elif size < 0:
                    raise self._end_of_stream()
                elif empty_reads == self._max_empty_reads or 0 < fresh_bytes < self._least_read_bytes:
                    break
                else:
                    empty_reads += 1
                    fresh_bytes = 0
                    self._pgconn.consume_input()
        except psycopg.Error as error:
            raise self._failure(error) from error
        if self._publication_missing:
            raise self._publication_missing
        if not frames:
            return None
        self.last_heard = time.monotonic()
        del frame  # libpq's copy of the last frame
        return decode_frames(frames)

    def silent_for(self) -> float:
        """Seconds since the last frame. A live server answers send_status(reply=True) at once."""
        return time.monotonic() - self.last_heard

    def send_status(self, *, flushed: int, reply: bool = False) -> None:
        """
        Confirm everything before `flushed`: the server may remove that WAL. `reply` asks for a keepalive. While the
        socket is full, only the newest status is kept.
        """
        self._unsent = (flushed, reply or (self._unsent is not None and self._unsent[1]))
        self.flush()

    @property
    def wants_write(self) -> bool:
        """Whether a status waits for the socket: call flush() when it is writable."""
        return self._unflushed or self._unsent is not None

    def flush(self) -> None:
        """Send as much as possible without blocking."""
        try:
            self._unflushed = self._pgconn.flush() != 0
            if self._unsent is not None and not self._unflushed:
                self._pgconn.put_copy_data(encode_status(*self._unsent))
                self._unsent = None
                self._unflushed = self._pgconn.flush() != 0
        except psycopg.Error as error:
            raise self._failure(error) from error

    def close(self, *, timeout_seconds: float = 1.0) -> None:
        """
        End the stream and close the connection; never raises. Waits up to the timeout for the server to end the stream
        too: closing a socket with unread input resets it, and the last status would be lost.
        """
        try:
            if self._streaming and timeout_seconds > 0:
                self._end_copy(time.monotonic() + timeout_seconds)
        except (psycopg.Error, ReplicationError, OSError):
            pass
        finally:
            self._streaming = False
            self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _end_copy(self, deadline: float) -> None:
        self.flush()
        self._pgconn.put_copy_end()
        while self._wait(deadline, write=self._pgconn.flush() != 0):
            for _ in range(_EMPTY_READS):
                self._pgconn.consume_input()
                if self._skip_frames() < 0:
                    return

    def _next_result(self, deadline: float) -> PGresult | None:
        while (unflushed := self._pgconn.flush() != 0) or self._pgconn.is_busy():
            if not self._wait(deadline, write=unflushed):
                raise ReplicationError("the server did not start to stream in time")
            self._pgconn.consume_input()
        return self._pgconn.get_result()

    def _wait(self, deadline: float, *, write: bool) -> bool:
        """Wait until the socket is ready; False at the deadline."""
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            return False  # even if the socket is ready: a server that sends all the time must not extend the deadline
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if write else 0)
        with selectors.DefaultSelector() as selector:
            selector.register(self._pgconn.socket, events)
            return bool(selector.select(remaining))

    def _notice(self, notice: psycopg.errors.Diagnostic) -> None:
        # A missing publication is an error up to PostgreSQL 17. Since 18 it is a warning: the server leaves the rows
        # out and its keepalives pass them, so confirming these would skip rows without any error.
        if notice.source_function == "LoadPublications":
            message = f"{notice.message_primary} ({notice.message_detail})"
            self._publication_missing = ReplicationError(message, sqlstate=_UNDEFINED_OBJECT)

    def _failure(self, error: psycopg.Error) -> ReplicationError:
        """Why the connection failed: the server's error if it arrived, else libpq's."""
        try:
            if self._skip_frames() < 0:
                return self._end_of_stream()
        except psycopg.Error:
            pass  # the connection holds no more data
        self._streaming = False
        return ReplicationError(f"the replication connection is lost: {_one_line(error)}")

    def _skip_frames(self) -> int:
        """Drop the frames that have arrived; negative at the end of the stream, 0 if more may come."""
        while (size := self._pgconn.get_copy_data(1)[0]) > 0:
            pass
        return size

    def _end_of_stream(self) -> ReplicationError:
        self._streaming = False
        result = self._pgconn.get_result()
        if result is not None and result.status == ExecStatus.FATAL_ERROR:
            return _server_error(result)
        return ReplicationError("the server ended the replication stream")


def _one_line(error: psycopg.Error) -> str:
    return " ".join(str(error).split())


def _server_error(result: PGresult) -> ReplicationError:
    primary, detail, sqlstate = (
        value.decode(errors="replace") if (value := result.error_field(field)) else None
        for field in (DiagnosticField.MESSAGE_PRIMARY, DiagnosticField.MESSAGE_DETAIL, DiagnosticField.SQLSTATE)
    )
    message = primary or result.get_error_message()
    return ReplicationError(f"{message} ({detail})" if detail else message, sqlstate=sqlstate)
