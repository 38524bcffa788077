"""
Link: one live AMQP connection. Frames in, frames out; it knows nothing of messages.

py-amqp does the protocol. What is different here is when bytes move:

- outgoing frames gather in a buffer (`frame`) and leave in one socket write (`flush`);
- incoming frames are read as far as they have arrived (`read`), without blocking and in large pieces, where py-amqp
  asks the socket three times for each frame. After `read` no complete frame is left in any buffer, neither py-amqp's
  nor TLS's, so that waiting for the socket to become readable misses nothing;
- everything that waits is bounded by the socket's timeout.

A channel that the broker closes is not reopened in the middle of reading, as py-amqp would: `ConfirmChannel` notes the
reason, and its owner acts on it later. So dispatching a frame of such a channel does no I/O.

This is the border to untyped code: the Any stay here.
"""

from __future__ import annotations

import select
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from amqp import spec
from amqp.exceptions import ChannelError, ConnectionError, ConnectionForced, error_for_code
from amqp.method_framing import frame_writer
from amqp.serialization import loads
from kombu.transport import pyamqp

from outbox.failures import outage

# py-amqp slices its buffer for every frame: larger pieces would cost more in copies than they save in calls.
READ_BYTES = 4096
CLOSE_SECONDS = 1.0


class ConfirmChannel(pyamqp.Channel):  # type: ignore[misc]  # untyped
    """A channel in confirm mode. Set `events` for its answers; `closed_with` is why the broker closed it."""

    closed_with: Exception | None = None

    def dispatch_method(self, method_sig: Any, payload: Any, content: Any) -> None:
        if method_sig == spec.Channel.Close:
            (code, text, class_id, method_id), _ = loads("BsBB", payload, 4)
            self.closed_with = error_for_code(code, text, (class_id, method_id), ChannelError)
        else:
            super().dispatch_method(method_sig, payload, content)


class _Connection(pyamqp.Connection):  # type: ignore[misc]  # untyped
    blocked_reason: str | None = None

    def connect(self, callback: Any = None) -> Any:
        try:
            return super().connect(callback)
        except BaseException:
            self.collect()  # py-amqp closes the socket after some errors only
            raise

    def dispatch_method(self, method_sig: Any, payload: Any, content: Any) -> None:
        # py-amqp does not decode the reason, which says whether memory or disk is short.
        if method_sig == spec.Connection.Blocked:
            self.blocked_reason = loads("s", payload, 4)[0][0] or "no reason given"
        elif method_sig == spec.Connection.Unblocked:
            self.blocked_reason = None
        elif method_sig == spec.Connection.Close:
            (code, text, class_id, method_id), _ = loads("BsBB", payload, 4)
            # The broker may be gone already: that must not hide why.
            with suppress(OSError):
                self.send_method(spec.Connection.CloseOk)
            raise error_for_code(code, text, (class_id, method_id), ConnectionError)
        else:
            super().dispatch_method(method_sig, payload, content)


class _Buffer:
    """What the frame writer takes for a transport."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.write = self.data.extend


class Link:
    """A connection that is open from the start, and useless after the first exception."""

    def __init__(self, client: Any) -> None:
        """Connect as the kombu `client` says. Raises what py-amqp and the socket raise."""
        transport = client.transport
        transport.Connection = _Connection
        self._connection = transport.establish_connection()
        # Taken once: py-amqp's attributes of the same names would silently connect again after a loss.
        self._transport = self._connection.transport
        self._dispatch: Callable[[Any], Any] = self._connection.on_inbound_frame
        self._socket = self._transport.sock
        self.limit_waits(client.connect_timeout)
        self._transport._quick_recv = self._receive
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        self._buffer = _Buffer()
        self.frame: Callable[..., None] = frame_writer(self._connection, self._buffer)
        """Write a method, with its content if any, to the buffer; the arguments are those of py-amqp's frame writer."""

    def limit_waits(self, timeout_seconds: float) -> None:
        """How long a single write or a wait for an answer may take; the connect timeout at first."""
        self._timeout_seconds = timeout_seconds
        self._socket.settimeout(timeout_seconds)

    @property
    def blocked(self) -> str | None:
        reason: str | None = self._connection.blocked_reason
        return reason

    @property
    def frame_max(self) -> int:
        size: int = self._connection.frame_max
        return size

    @property
    def buffered_bytes(self) -> int:
        return len(self._buffer.data)

    def fileno(self) -> int:
        number: int = self._socket.fileno()
        return number

    def flush(self) -> None:
        """Write what is buffered."""
        data = self._buffer.data
        if data:
            self._transport.write(memoryview(bytes(data)))
            data.clear()

    def read(self) -> None:
        """Dispatch every frame that has arrived. What came before a loss is dispatched before the loss is raised."""
        frames = []
        loss: Exception | None = None
        read_frame = self._transport.read_frame
        self._socket.settimeout(0)
        try:
            while True:
                frames.append(read_frame())
        except TimeoutError:
            pass
        except Exception as error:
            loss = error
        self._socket.settimeout(self._timeout_seconds)
        for frame in frames:
            self._dispatch(frame)
        if loss is not None:
            raise loss

    def wait_readable(self, timeout_seconds: float) -> bool:
        return bool(self._poll.poll(timeout_seconds * 1000))

    def open_confirm_channel(self) -> ConfirmChannel:
        channel = ConfirmChannel(self._connection)
        channel.open()
        channel.confirm_select()
        return channel

    def open_channel(self) -> Any:
        """An ordinary kombu channel, which py-amqp reopens after an error."""
        return self._connection.channel()

    def confirm_close(self, channel: ConfirmChannel) -> None:
        """Answer the broker's close of a channel, which frees the channel's number."""
        channel.send_method(spec.Channel.CloseOk)
        channel.collect()

    def heartbeat(self) -> None:
        # The heartbeat of a blocked connection can find the send buffer full: the broker does not read, nor does it
        # expect heartbeats then.
        if self.blocked is None or self._is_writable():
            try:
                self._connection.heartbeat_tick()
            except ConnectionForced as error:
                raise outage("HeartbeatMissed", "the broker was silent for two heartbeat intervals") from error

    def close(self) -> None:
        """Take leave of the broker if it listens. Never raises."""
        with suppress(Exception):
            if self.blocked is None:
                self._socket.settimeout(CLOSE_SECONDS)
                self._connection.close()
        self.abandon()

    def abandon(self) -> None:
        """Close the socket. Never raises."""
        with suppress(Exception):
            self._socket.settimeout(CLOSE_SECONDS)  # TLS says goodbye on the way
        with suppress(Exception):
            self._connection.collect()

    def _is_writable(self) -> bool:
        poll = select.poll()
        poll.register(self._socket, select.POLLOUT)
        return bool(poll.poll(0))

    def _receive(self, size: int) -> bytes:
        """
        In place of `socket.recv`: py-amqp keeps what it did not ask for, in the same buffer.

        "Nothing there" becomes TimeoutError, on which py-amqp puts a torn frame back; on EAGAIN it would spin.
        """
        try:
            data: bytes = self._socket.recv(max(size, READ_BYTES))
        except (BlockingIOError, ssl.SSLWantReadError):
            raise TimeoutError("no answer in time") from None
        return data
