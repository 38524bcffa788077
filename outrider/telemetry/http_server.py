"""
A small HTTP server that a client cannot use to harm its process.

It answers GET and HEAD on its own daemon threads, one request per connection, without TLS and without users.

A request must arrive completely within `timeout_seconds`, even if it is sent byte by byte; its head may have
MAX_HEAD_BYTES; the client must read the answer within the same time. At most `max_connections` are served at a time.
Beyond that, the server closes the connection that has waited longest for its request in favour of the new one, so that
idle connections cannot keep a probe out. If no connection is idle, the answer is 503.
"""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from io import BytesIO
from socketserver import ThreadingTCPServer
from typing import Any

from outrider.telemetry.logs import get_logger
from outrider.telemetry.printable import printable_json

MAX_HEAD_BYTES = 8192
MAX_DRAINED_BYTES = 256 * 1024
DRAIN_SECONDS = 0.5
POLL_SECONDS = 0.1

Answer = tuple[HTTPStatus, str, bytes]
"""Status, content type, body."""

log = get_logger(__name__)


def json_answer(status: HTTPStatus, body: Mapping[str, object]) -> Answer:
    return status, "application/json", printable_json(body).encode() + b"\n"


def text_answer(status: HTTPStatus, text: str) -> Answer:
    return status, "text/plain; charset=utf-8", text.encode() + b"\n"


class BoundedHttpServer(ThreadingTCPServer):
    """`answer(path, accept)` is called on a thread of this server for each request."""

    # Not HTTPServer: it looks up the host's name, which can take seconds if DNS does not answer.
    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 64

    def __init__(
        self,
        family: socket.AddressFamily,
        address: Any,
        answer: Callable[[str, str], Answer],
        timeout_seconds: float,
        max_connections: int,
    ) -> None:
        self.address_family = family
        self.answer = answer
        self.timeout_seconds = timeout_seconds
        self._slots = threading.BoundedSemaphore(max_connections)
        self._idle: dict[socket.socket, None] = {}  # no complete request yet; the first one has waited longest
        self._lock = threading.Lock()
        super().__init__(address, _Handler)

    def get_request(self) -> tuple[socket.socket, Any]:
        try:
            return super().get_request()
        except OSError:
            time.sleep(POLL_SECONDS)  # out of file descriptors: do not try again in a busy loop
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._slots.acquire(blocking=False):
            self._close_longest_idle()
            if not self._slots.acquire(timeout=POLL_SECONDS):
                with suppress(OSError):
                    request.settimeout(0)
                    request.send(b"HTTP/1.0 503 Service Unavailable\r\nConnection: close\r\n\r\n")
                self.shutdown_request(request)
                return
        with self._lock:
            self._idle[request] = None
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no thread could be started
            self.not_idle(request)
            self._slots.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.not_idle(request)
            self._slots.release()

    def not_idle(self, request: socket.socket) -> None:
        """The request has arrived, or the connection is about to be closed: it must not be closed as idle any more."""
        with self._lock:
            self._idle.pop(request, None)

    def server_close(self) -> None:
        super().server_close()
        while self._close_longest_idle():
            pass

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        log.debug("http_connection_failed", error=type(sys.exception()).__name__)

    def _close_longest_idle(self) -> bool:
        with self._lock:
            longest = next(iter(self._idle), None)
            if longest is None:
                return False
            del self._idle[longest]
            with suppress(OSError):
                longest.shutdown(socket.SHUT_RDWR)  # wakes the connection's thread, which closes it
            return True


class _Handler(BaseHTTPRequestHandler):
    """One connection: one request, one answer. Reads the head with one deadline; the standard library parses it."""

    server: BoundedHttpServer
    command = ""
    request_version = "HTTP/1.0"
    default_request_version = "HTTP/1.0"
    server_version = "outrider"
    sys_version = ""

    def handle(self) -> None:
        try:
            head = self._read_head()
        finally:
            self.server.not_idle(self.connection)
        if head is None:
            return
        self.connection.settimeout(self.server.timeout_seconds)
        if len(head) > MAX_HEAD_BYTES:
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
            return
        self.rfile.close()
        self.rfile = BytesIO(head)
        self.raw_requestline = self.rfile.readline()
        if not self.parse_request():
            return
        if self.command not in ("GET", "HEAD"):
            self._refuse(HTTPStatus.METHOD_NOT_ALLOWED)
            return
        try:
            answer = self.server.answer(self.path.partition("?")[0], self.headers.get("Accept", ""))
        except Exception:
            log.exception("http_request_failed", path=self.path[:100])
            answer = text_answer(HTTPStatus.INTERNAL_SERVER_ERROR, "see the log")
        self._send(answer)

    def _read_head(self) -> bytes | None:
        """The bytes up to the empty line, or more than MAX_HEAD_BYTES; None if they did not arrive in time."""
        deadline = time.monotonic() + self.server.timeout_seconds
        head = bytearray()
        while b"\r\n\r\n" not in head and b"\n\n" not in head and len(head) <= MAX_HEAD_BYTES:
            self.connection.settimeout(max(deadline - time.monotonic(), 0.001))
            try:
                received = self.connection.recv(MAX_HEAD_BYTES)
            except TimeoutError:
                received = b""
            if not received:
                log.debug("http_request_incomplete", received_bytes=len(head))
                return None
            head += received
        return bytes(head)

    def _refuse(self, status: HTTPStatus) -> None:
        self._send(text_answer(status, status.phrase))
        # Closing with unread bytes resets the connection, and the client would not see the answer.
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_WR)
            deadline = time.monotonic() + min(DRAIN_SECONDS, self.server.timeout_seconds)
            drained = 0
            while drained < MAX_DRAINED_BYTES and (left := deadline - time.monotonic()) > 0:
                self.connection.settimeout(left)
                received = self.connection.recv(65536)
                if not received:
                    break
                drained += len(received)

    def _send(self, answer: Answer) -> None:
        status, content_type, body = answer
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        if status is HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", "GET, HEAD")
        self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:  # noqa: ARG002
        """Called when the standard library cannot parse a request. Its own error page would repeat the request."""
        self._refuse(HTTPStatus(code))

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:  # noqa: ARG002
        log.debug("http_request", method=self.command, path=getattr(self, "path", "")[:100], status=int(code))
