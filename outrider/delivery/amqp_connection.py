"""
AmqpConnection: one live AMQP connection. Frames in, frames out; it knows nothing of messages.

py-amqp does the protocol. What is different here is when bytes move:

- the socket never blocks;
- outgoing frames gather in a buffer (`put`) and leave in one socket write (`flush`), as far as the socket takes them:
  the rest leaves later, and in front of whatever py-amqp sends of its own;
- incoming frames are read as far as they have arrived (`read`), in large pieces, where py-amqp asks the socket three
  times for each frame. After `read` no complete frame is left in any buffer, neither py-amqp's nor TLS's, so that
  waiting for the socket to become readable misses nothing;
- a confirm, which nearly every incoming frame is, goes straight to whom it concerns;
- where py-amqp itself waits for an answer or for room, the wait is bounded (`limit_waits`).

A channel that the broker closes is not reopened in the middle of reading, as py-amqp would: `ConfirmChannel` notes the
reason, and its owner acts on it later. So dispatching a frame of such a channel does no I/O.

This is the border to untyped code: the Any stay here.
"""

from __future__ import annotations

import select
import ssl
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from struct import Struct
from time import monotonic
from typing import Any

from amqp import spec
from amqp.exceptions import ChannelError, ConnectionError, ConnectionForced, error_for_code
from amqp.serialization import loads
from kombu.transport import pyamqp

from outrider.failures import outage

# py-amqp slices its buffer for every frame: larger pieces would cost more in copies than they save in calls.
READ_BYTES = 4096
CLOSE_SECONDS = 1.0
_NOT_NOW = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
_METHOD_FRAME = 1
_BASIC_ACK = Struct(">HH").pack(*spec.Basic.Ack)
_ACK_ARGUMENTS = Struct(">QB")  # the tag, and whether all before it are meant too

OnAck = Callable[[int, bool], None]


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


class AmqpConnection:
    """A connection that is open from the start, and useless after the first exception."""

    def __init__(self, client: Any) -> None:
        """Connect as the kombu `client` says. Raises what py-amqp and the socket raise."""
        transport = client.transport
        transport.Connection = _Connection
        self._connection = transport.establish_connection()
        # Taken once: py-amqp's attributes of the same names would silently connect again after a loss.
        self._transport = self._connection.transport
        self._dispatch: Callable[[Any], Any] = self._connection.on_inbound_frame
        self._on_ack: dict[int, OnAck] = {}
        self._socket = self._transport.sock
        self._socket.settimeout(0)
        self._over_tls = isinstance(self._socket, ssl.SSLSocket)
        self._transport._quick_recv = self._receive
        self._transport._write = self._write_all
        self._timeout_seconds: float = client.connect_timeout
        self._may_wait = True
        self._emptied = False
        self._buffer: list[bytes] = []
        self._unsent: deque[bytes | memoryview] = deque()
        self._last_sent = monotonic()

    def limit_waits(self, timeout_seconds: float) -> None:
        """How long py-amqp may wait for an answer, or to get rid of something; the connect timeout at first."""
        self._timeout_seconds = timeout_seconds

    @property
    def blocked(self) -> str | None:
        reason: str | None = self._connection.blocked_reason
        return reason

    @property
    def frame_max(self) -> int:
        size: int = self._connection.frame_max
        return size

    def fileno(self) -> int:
        number: int = self._socket.fileno()
        return number

    def put(self, *frames: bytes) -> None:
        """Frames, or pieces of them, that leave with the next flush."""
        self._buffer += frames

    def flush(self) -> None:
        """Write what is buffered, as far as the socket takes it."""
        unsent = self._unsent
        if self._buffer:
            if not unsent:
                self._last_sent = monotonic()
            unsent.append(b"".join(self._buffer))
            self._buffer.clear()
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

    @property
    def wants_write(self) -> bool:
        """Whether something waits for the socket to become writable; then call `flush`."""
        return bool(self._unsent)

    def stuck_seconds(self) -> float:
        """For how long the socket has taken nothing of what is unsent."""
        return monotonic() - self._last_sent if self._unsent else 0.0

    def read(self) -> None:
        """Dispatch every frame that has arrived. What came before a loss is dispatched before the loss is raised."""
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
                self._connection.bytes_recv += 1  # a sign of life, as py-amqp counts them
                tag, multiple = _ACK_ARGUMENTS.unpack_from(payload, len(_BASIC_ACK))
                self._on_ack[channel](tag, bool(multiple))
            else:
                self._dispatch(frame)
        if loss is not None:
            raise loss

    def wait(self, timeout_seconds: float) -> None:
        """Until something arrives, or what is unsent can be sent."""
        self._poll(select.POLLIN | (select.POLLOUT if self._unsent else 0), timeout_seconds)

    def open_confirm_channel(self, on_ack: OnAck) -> ConfirmChannel:
        channel = ConfirmChannel(self._connection)
        channel.open()
        channel.confirm_select()
        self._on_ack[channel.channel_id] = on_ack
        channel.events["basic_ack"].add(on_ack)  # for what arrives while py-amqp itself waits for something
        return channel

    def open_channel(self) -> Any:
        """An ordinary kombu channel, which py-amqp reopens after an error."""
        return self._connection.channel()

    def confirm_close(self, channel: ConfirmChannel) -> None:
        """Answer the broker's close of a channel, which frees the channel's number."""
        self._on_ack.pop(channel.channel_id, None)
        channel.send_method(spec.Channel.CloseOk)
        channel.collect()

    def heartbeat(self) -> None:
        # A blocked broker does not read, nor does it expect heartbeats; and what waits to be sent is as good as one.
        if self.blocked is None and not self._unsent:
            try:
                self._connection.heartbeat_tick()
            except ConnectionForced as error:
                raise outage("HeartbeatMissed", "the broker was silent for two heartbeat intervals") from error

    def close(self) -> None:
        """Take leave of the broker if it listens. Never raises."""
        with suppress(Exception):
            if self.blocked is None:
                self._timeout_seconds = CLOSE_SECONDS
                self._connection.close()
        self.abandon()

    def abandon(self) -> None:
        """Close the socket. Never raises."""
        with suppress(Exception):
            self._connection.collect()

    def _poll(self, events: int, timeout_seconds: float) -> bool:
        poll = select.poll()
        poll.register(self._socket, events)
        return bool(poll.poll(timeout_seconds * 1000))

    def _receive(self, size: int) -> bytes:
        """
        In place of `socket.recv`: py-amqp keeps what it did not ask for, in the same buffer.

        "Nothing there" becomes TimeoutError, on which py-amqp puts a torn frame back; on EAGAIN it would spin.
        """
        deadline = monotonic() + self._timeout_seconds if self._may_wait else 0.0
        size = max(size, READ_BYTES)
        while not self._emptied:
            try:
                data: bytes = self._socket.recv(size)
            except _NOT_NOW:
                if not self._may_wait or not self._poll(select.POLLIN, max(0.0, deadline - monotonic())):
                    break
            else:
                # Less than asked for means that there is no more. TLS hands out record by record.
                self._emptied = not self._may_wait and not self._over_tls and 0 < len(data) < size
                return data
        raise TimeoutError("no answer in time")

    def _write_all(self, data: bytes) -> None:
        """In place of `socket.sendall`, for what py-amqp sends of its own, which must not overtake what is unsent."""
        self.put(bytes(data))
        deadline = monotonic() + self._timeout_seconds
        self.flush()
        while self._unsent:
            if not self._poll(select.POLLOUT, max(0.0, deadline - monotonic())):
                raise TimeoutError("the broker does not read")
            self.flush()
