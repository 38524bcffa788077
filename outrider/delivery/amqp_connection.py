"""
AmqpConnection: one open AMQP connection that reads and writes frames without blocking. It does not know messages.

py-amqp implements the protocol. This module replaces its socket calls:

- the socket is non-blocking;
- outgoing frames are buffered (`put`) and written in one system call (`flush`), as far as the socket takes them. The
  rest is written later, before anything that py-amqp sends itself;
- incoming frames are read as far as they have arrived (`read`), in large pieces; py-amqp would make three system calls
  for each frame. After `read` no complete frame is left in a buffer, neither py-amqp's nor TLS's, so a select() on the
  socket misses nothing;
- a confirm, which nearly every incoming frame is, goes directly to its channel's callback;
- where py-amqp itself waits for a reply or for the socket, the wait is limited (`timeout_seconds`).

py-amqp would reopen a channel that the broker closed, in the middle of reading. `ConfirmChannel` stores the reason
instead, and PublishChannel's owner reopens it later, so dispatching a frame does no I/O.

py-amqp and kombu are untyped: the values of type Any stay in this module.
"""

from __future__ import annotations

import math
import select
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from struct import Struct
from time import monotonic
from typing import Any

from amqp import spec
from amqp.exceptions import ChannelError, ConnectionError, ConnectionForced, error_for_code
from amqp.serialization import loads
from kombu.transport import pyamqp

from outrider.failures import outage

# py-amqp slices its buffer for every frame: larger pieces would cost more for copies than they save in system calls.
READ_BYTES = 4096
# A body of four frames or more, that is of some 400 kB: a system call for each piece then costs less than a copy.
PIECES_OF_A_LARGE_MESSAGE = 13
CLOSE_SECONDS = 1.0
_NOT_NOW = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
_METHOD_FRAME = 1
_BASIC_ACK = Struct(">HH").pack(*spec.Basic.Ack)
_ACK_ARGUMENTS = Struct(">QB")  # the tag, and whether all before it are meant too

OnAck = Callable[[int, bool], None]


class ConfirmChannel(pyamqp.Channel):  # type: ignore[misc]  # untyped
    """A channel in confirm mode. `closed_with` is why the broker closed it; py-amqp calls its `events` for the rest."""

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
            # The broker may have closed the socket already: that error must not hide its reason.
            with suppress(OSError):
                self.send_method(spec.Connection.CloseOk)
            raise error_for_code(code, text, (class_id, method_id), ConnectionError)
        else:
            super().dispatch_method(method_sig, payload, content)


class AmqpConnection:
    """Open from the start, and unusable after the first exception: then call `abandon`."""

    def __init__(self, client: Any) -> None:
        """Connect with the settings of the kombu `client`. Raises what py-amqp and the socket raise."""
        transport = client.transport
        transport.Connection = _Connection
        self._connection = transport.establish_connection()
        self.frame_max: int = self._connection.frame_max
        # Read once: after a loss py-amqp's properties of the same names would silently connect again.
        self._transport = self._connection.transport
        self._dispatch: Callable[[Any], Any] = self._connection.on_inbound_frame
        self._on_ack: dict[int, OnAck] = {}
        self._socket = self._transport.sock
        self._socket.settimeout(0)
        self._over_tls = isinstance(self._socket, ssl.SSLSocket)
        self._transport._quick_recv = self._receive
        self._transport._write = self._write_all
        self.timeout_seconds: float = client.connect_timeout
        self._give_up_at = math.inf
        self._may_wait = True
        self._emptied = False
        self._buffer: list[bytes | memoryview] = []
        self._unsent: deque[bytes | memoryview] = deque()
        self._last_sent = monotonic()

    @property
    def blocked(self) -> str | None:
        reason: str | None = self._connection.blocked_reason
        return reason

    def fileno(self) -> int:
        number: int = self._socket.fileno()
        return number

    def put(self, frames: Sequence[bytes | memoryview]) -> None:
        """Buffer frames, or pieces of them, for the next flush."""
        if len(frames) < PIECES_OF_A_LARGE_MESSAGE:
            self._buffer += frames
        else:
            # Not joined: the copy would hold a large message twice until it is sent.
            self._end_buffer()
            self._unsent += frames

    def flush(self) -> None:
        """Write the buffer, as far as the socket takes it."""
        unsent = self._unsent
        self._end_buffer()
        try:
            while unsent:
                sent = self._socket.send(unsent[0])
                self._last_sent = monotonic()
                if sent == len(unsent[0]):
                    unsent.popleft()
                else:
                    unsent[0] = memoryview(unsent[0])[sent:]
        except _NOT_NOW:
            pass

    def _end_buffer(self) -> None:
        if not self._unsent:
            self._last_sent = monotonic()
        if self._buffer:
            self._unsent.append(b"".join(self._buffer))
            self._buffer.clear()

    @property
    def wants_write(self) -> bool:
        """Whether unsent bytes wait for the socket to become writable; then call `flush`."""
        return bool(self._unsent)

    def stuck_seconds(self) -> float:
        """For how long the socket has taken none of the unsent bytes."""
        return monotonic() - self._last_sent if self._unsent else 0.0

    def read(self) -> None:
        """Dispatch every frame that has arrived, and raise the loss of the connection after that."""
        frames = []
        loss: Exception | None = None
        read_frame = self._transport.read_frame
        self._may_wait = self._emptied = False
        try:
            while True:
                frames.append(read_frame())
        except TimeoutError:
            pass
        except Exception as error:
            loss = error
        self._may_wait, self._emptied = True, False
        for frame in frames:
            kind, channel, payload = frame
            if kind == _METHOD_FRAME and channel in self._on_ack and payload.startswith(_BASIC_ACK):
                self._connection.bytes_recv += 1  # py-amqp's heartbeat check compares it
                tag, multiple = _ACK_ARGUMENTS.unpack_from(payload, len(_BASIC_ACK))
                self._on_ack[channel](tag, bool(multiple))
            else:
                self._dispatch(frame)
        if loss is not None:
            raise loss

    def wait(self, timeout_seconds: float) -> None:
        """Wait until something arrives, or until unsent bytes can be written."""
        self._poll(select.POLLIN | (select.POLLOUT if self._unsent else 0), timeout_seconds)

    def open_confirm_channel(self, on_ack: OnAck) -> ConfirmChannel:
        channel = ConfirmChannel(self._connection)
        channel.open()
        channel.confirm_select()
        self._on_ack[channel.channel_id] = on_ack
        channel.events["basic_ack"].add(on_ack)  # for confirms that arrive while py-amqp itself waits for a reply
        return channel

    def open_channel(self) -> Any:
        """An ordinary kombu channel, which py-amqp reopens after an error."""
        return self._connection.channel()

    def confirm_close(self, channel: ConfirmChannel) -> None:
        """Answer the broker's close of a channel, so that its number can be used again."""
        self._on_ack.pop(channel.channel_id, None)
        channel.send_method(spec.Channel.CloseOk)
        channel.collect()

    def heartbeat(self) -> None:
        # A blocked broker neither reads nor expects heartbeats, and unsent bytes do the job of a heartbeat.
        if self.blocked is None and not self._unsent:
            try:
                self._connection.heartbeat_tick()
            except ConnectionForced as error:
                raise outage("HeartbeatMissed", "the broker was silent for two heartbeat intervals") from error

    def close(self) -> None:
        """Send connection.close, unless the broker is blocked, and close the socket. Never raises."""
        with suppress(Exception):
            if self.blocked is None:
                # For everything together: over a slow line something arrives all the time.
                self._give_up_at = monotonic() + CLOSE_SECONDS
                self._connection.close()
        self.abandon()

    def abandon(self) -> None:
        """Close the socket. Never raises."""
        # Now: py-amqp's reference cycles keep this object until the garbage collector comes.
        self._buffer.clear()
        self._unsent.clear()
        with suppress(Exception):
            self._connection.collect()

    def _deadline(self) -> float:
        return min(monotonic() + self.timeout_seconds, self._give_up_at)

    def _poll(self, events: int, timeout_seconds: float) -> bool:
        poll = select.poll()
        poll.register(self._socket, events)
        return bool(poll.poll(timeout_seconds * 1000))

    def _receive(self, size: int) -> bytes:
        """
        Replaces py-amqp's `socket.recv`. It may return more than `size`: py-amqp keeps the rest in its buffer.

        Raises TimeoutError when nothing has arrived: py-amqp then keeps a partial frame. On EAGAIN it would loop.
        """
        deadline = self._deadline() if self._may_wait else 0.0
        if self._may_wait and monotonic() > self._give_up_at:
            raise TimeoutError("no answer in time")
        size = max(size, READ_BYTES)
        while not self._emptied:
            try:
                data: bytes = self._socket.recv(size)
            except _NOT_NOW:
                if not self._may_wait or not self._poll(select.POLLIN, max(0.0, deadline - monotonic())):
                    break
            else:
                # Less than asked for means that nothing is left. TLS returns one record at a time.
                self._emptied = not self._may_wait and not self._over_tls and 0 < len(data) < size
                return data
        raise TimeoutError("no answer in time")

    def _write_all(self, data: bytes) -> None:
        """Replaces py-amqp's `socket.sendall`. What py-amqp sends itself is written after the unsent bytes."""
        self.put([bytes(data)])
        deadline = self._deadline()
        self.flush()
        while self._unsent:
            if monotonic() > self._give_up_at or not self._poll(select.POLLOUT, max(0.0, deadline - monotonic())):
                raise TimeoutError("the broker does not read")
            self.flush()
