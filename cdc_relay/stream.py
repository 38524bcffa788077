"""
The replication connection: the only module that talks the streaming replication protocol.

One thread owns a stream, waits for its socket and calls `read`. After `start`, `read`, `send_status` and `flush` never
block. Whatever goes wrong on the connection, be it the server's refusal, the end of the stream or a cut cable, is one
exception: ReplicationError, with the server's SQLSTATE, or None where the server had no say. A refused command may be
repeated; after any other error, close the stream. Frames that are not the protocol's raise ProtocolError.

A loop looks like this:

    stream = ReplicationStream.open(dsn)
    stream.start("outrider", "outrider")
    while True:
        arrival = stream.read(500)
        ...
        stream.send_status(flushed=...)
        if not stream.has_more:
            select.select([stream], [stream] if stream.wants_write else [], [], 1.0)

psycopg has no replication API, but its connection knows hosts, timeouts and TLS, and its libpq wrapper knows COPY.
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

from outrider.cdc_relay.lsn import Lsn
from outrider.cdc_relay.replication_frames import Arrival, decode_frames, encode_status
from outrider.errors import ReplicationError

_FROM_THE_SLOT: Final = Lsn(0)
_UNDEFINED_OBJECT: Final = "42704"

# TLS and GSSAPI keep up to one decrypted record (16 kB) to themselves, and libpq takes at least 8 kB of it at a time:
# the rest of one record and both halves of the next make three readings, and only after these will whatever is still
# missing make the socket readable. A plain socket is readable for as long as it has something.
_READINGS_IN_VAIN: Final = 3
_READINGS_IN_VAIN_UNENCRYPTED: Final = 1

# libpq offers the socket at least this much room: a plain socket that gave less has no more, or will say so.
_LEAST_ROOM_BYTES: Final = 8 * 1024


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
        self._unsent: tuple[int, int, bool] | None = None
        self._unflushed = False
        encrypted = self._pgconn.ssl_in_use or self._pgconn.used_gssapi
        self._readings_in_vain = _READINGS_IN_VAIN if encrypted else _READINGS_IN_VAIN_UNENCRYPTED
        self._little = 0 if encrypted else _LEAST_ROOM_BYTES
        self.has_more = False
        self.last_heard = time.monotonic()

    @classmethod
    def open(cls, conninfo: str, *, connect_timeout_seconds: int = 10) -> Self:
        """
        Connect in replication mode. All options of libpq in `conninfo` and in the environment apply; the timeout
        (for each host) and the application name are only for those who did not set theirs.
        """
        try:
            options: dict[str, str | int] = {
                "replication": "database",
                "client_encoding": "UTF8",  # names and text arrive in it, whatever the encoding of the database
                "fallback_application_name": "outrider-relay",
            }
            if "connect_timeout" not in conninfo_to_dict(conninfo) and "PGCONNECT_TIMEOUT" not in os.environ:
                options["connect_timeout"] = connect_timeout_seconds
            connection = psycopg.connect(make_conninfo(conninfo, **options), autocommit=True)
        except psycopg.Error as error:
            message = f"cannot open a replication connection: {_one_line(error)}"
            raise ReplicationError(message, sqlstate=error.sqlstate) from error
        return cls(connection)

    def execute(self, command: str, *, timeout_seconds: float | None = 30.0) -> list[tuple[str | None, ...]]:
        """
        Run a replication command such as IDENTIFY_SYSTEM, wait for it, and return its rows as text. Not while
        streaming. CREATE_REPLICATION_SLOT waits for every transaction that is running: give it time, or None.
        """
        result = self._run(command, timeout_seconds)
        rows = []
        for row in range(result.ntuples):
            values = (result.get_value(row, column) for column in range(result.nfields))
            rows.append(tuple(None if value is None else value.decode() for value in values))
        return rows

    def start(
        self, slot: str, publication: str, start_lsn: Lsn = _FROM_THE_SLOT, *, timeout_seconds: float | None = 30.0
    ) -> None:
        """Begin to stream: from what the slot has confirmed, or from `start_lsn` where that is later."""
        # publication_names is a literal that holds a list of identifiers, hence quoted twice.
        self._run(
            f"START_REPLICATION SLOT {quote_identifier(slot)} LOGICAL {start_lsn} (proto_version '1', "
            f"publication_names {quote_literal(quote_identifier(publication))}, binary 'true')",
            timeout_seconds,
        )
        self._streaming = True
        self.last_heard = time.monotonic()

    def fileno(self) -> int:
        """The socket, for select. Messages may wait in libpq although it is not readable: see has_more."""
        try:
            return self._pgconn.socket
        except psycopg.Error as error:
            raise self._failure(error) from error

    def read(self, limit: int, *, max_bytes: int = 8 * 1024 * 1024) -> Arrival | None:
        """
        Return what has arrived, None for nothing: at most `limit` frames, and no more once they have `max_bytes`.
        If a limit ended it, has_more is true: read again before you wait for the socket. What arrived together with an
        error is dropped: nobody has confirmed it, so the server sends it again.
        """
        frames: list[bytes] = []
        get_copy_data = self._pgconn.get_copy_data
        byte_count = fresh_bytes = readings_in_vain = 0
        had_more, self.has_more = self.has_more, False
        try:
            if not had_more:  # the last reading left nothing: what there is waits in the socket
                readings_in_vain = 1
                self._pgconn.consume_input()
            while True:
                size, frame = get_copy_data(1)
                if size > 0:
                    frames.append(frame.tobytes())
                    readings_in_vain = 0
                    byte_count += size
                    fresh_bytes += size
                    if len(frames) >= limit or byte_count >= max_bytes:
                        self.has_more = True
                        break
                elif size < 0:
                    raise self._end_of_stream()
                elif readings_in_vain == self._readings_in_vain or 0 < fresh_bytes < self._little:
                    break
                else:
                    readings_in_vain += 1
                    fresh_bytes = 0
                    self._pgconn.consume_input()
        except psycopg.Error as error:
            raise self._failure(error) from error
        if self._publication_missing:
            raise self._publication_missing
        if not frames:
            return None
        self.last_heard = time.monotonic()
        return decode_frames(frames)

    def silent_for(self) -> float:
        """Seconds since the server was last heard; a live one answers send_status(reply=True) at once."""
        return time.monotonic() - self.last_heard

    def send_status(self, *, flushed: int, written: int | None = None, reply: bool = False) -> None:
        """
        Tell the server that it may forget everything before `flushed`. `written` (default: flushed) only shows up in
        pg_stat_replication; `reply` asks for a keepalive. While the socket takes nothing, only the newest is kept.
        """
        reply = reply or (self._unsent is not None and self._unsent[2])
        self._unsent = (flushed if written is None else written, flushed, reply)
        self.flush()

    @property
    def wants_write(self) -> bool:
        """Whether a status waits for the socket to become writable; then call flush()."""
        return self._unflushed or self._unsent is not None

    def flush(self) -> None:
        """Send what can be sent without waiting."""
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
        Take leave and close; never raises. Waits, not longer than told, for the server to take leave too: a socket
        closed with unread input is reset, and the last status would be lost with it.
        """
        try:
            if self._streaming and timeout_seconds > 0:
                self._end_copy(_deadline(timeout_seconds))
        except (psycopg.Error, ReplicationError, OSError):
            pass
        finally:
            self._streaming = False
            self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _end_copy(self, deadline: float | None) -> None:
        self.flush()
        self._pgconn.put_copy_end()
        while self._wait(deadline, write=self._pgconn.flush() != 0):
            for _ in range(_READINGS_IN_VAIN):
                self._pgconn.consume_input()
                if self._skip_messages() < 0:
                    return

    def _run(self, command: str, timeout_seconds: float | None) -> PGresult:
        if "\0" in command:
            raise ValueError("a replication command must not contain NUL")
        deadline = _deadline(timeout_seconds)
        last: PGresult | None = None
        try:
            self._pgconn.send_query(command.encode())
            while (result := self._next_result(deadline)) is not None:
                if last is None or last.status != ExecStatus.FATAL_ERROR:
                    last = result
                if result.status == ExecStatus.COPY_BOTH:
                    break
        except psycopg.Error as error:
            raise self._failure(error) from error
        if last is None:
            raise ReplicationError("the server gave no answer to a replication command")
        if last.status == ExecStatus.FATAL_ERROR:
            raise _server_error(last)
        return last

    def _next_result(self, deadline: float | None) -> PGresult | None:
        while (unflushed := self._pgconn.flush() != 0) or self._pgconn.is_busy():
            if not self._wait(deadline, write=unflushed):
                raise ReplicationError("the server did not answer a replication command in time")
            self._pgconn.consume_input()
        return self._pgconn.get_result()

    def _wait(self, deadline: float | None, *, write: bool) -> bool:
        """Wait until the socket is ready; false if the deadline came first."""
        remaining = None if deadline is None else deadline - time.monotonic()
        if remaining is not None and remaining <= 0:
            return False  # even if it is ready: a server that always has something to say must not keep us
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if write else 0)
        with selectors.DefaultSelector() as selector:
            selector.register(self._pgconn.socket, events)
            return bool(selector.select(remaining))

    def _notice(self, notice: psycopg.errors.Diagnostic) -> None:
        # A publication that is missing was an error until PostgreSQL 17. Since 18 it is a warning, the rows are left
        # out, and the keepalives go past them: somebody who confirms those would never know.
        if notice.source_function == "LoadPublications":
            message = f"{notice.message_primary} ({notice.message_detail})"
            self._publication_missing = ReplicationError(message, sqlstate=_UNDEFINED_OBJECT)

    def _failure(self, error: psycopg.Error) -> ReplicationError:
        """Why the connection broke: in the words of the server, if they came through, or else in those of libpq."""
        try:
            if self._skip_messages() < 0:
                return self._end_of_stream()
        except psycopg.Error:
            pass  # the connection has nothing more to tell
        self._streaming = False
        return ReplicationError(f"the replication connection is lost: {_one_line(error)}")

    def _skip_messages(self) -> int:
        """Drop the messages that have arrived; negative if they were the last, 0 if more may come."""
        while (size := self._pgconn.get_copy_data(1)[0]) > 0:
            pass
        return size

    def _end_of_stream(self) -> ReplicationError:
        self._streaming = False
        result = self._pgconn.get_result()
        if result is not None and result.status == ExecStatus.FATAL_ERROR:
            return _server_error(result)
        return ReplicationError("the server ended the replication stream")


def quote_identifier(name: str) -> str:
    """
    Quote a name. Publications may hold quotes; the replication grammar has no escape for them, so that a slot with one
    (which no server has) comes out as two names side by side, which is a syntax error and nothing worse.
    """
    return '"' + name.replace('"', '""') + '"'


def quote_literal(text: str) -> str:
    """Quote a string for the replication grammar; backslashes are ordinary characters there."""
    return "'" + text.replace("'", "''") + "'"


def _deadline(timeout_seconds: float | None) -> float | None:
    return None if timeout_seconds is None else time.monotonic() + timeout_seconds


def _one_line(error: psycopg.Error) -> str:
    return " ".join(str(error).split())


def _server_error(result: PGresult) -> ReplicationError:
    primary, detail, sqlstate = (
        value.decode(errors="replace") if (value := result.error_field(field)) else None
        for field in (DiagnosticField.MESSAGE_PRIMARY, DiagnosticField.MESSAGE_DETAIL, DiagnosticField.SQLSTATE)
    )
    message = primary or result.get_error_message()
    return ReplicationError(f"{message} ({detail})" if detail else message, sqlstate=sqlstate)
