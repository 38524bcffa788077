"""
The HTTP endpoints of a service: /metrics, /healthz, /readyz and /status, for scrapers, probes and people.

A small server on daemon threads of its own, for GET and HEAD, one request per connection. It is bound to loopback
unless the settings say otherwise, speaks no TLS and knows no users: whoever reaches the port may read.

It must not become the service's weak spot. A request has to arrive whole within `timeout_seconds`, be it sent byte by
byte; its head may have MAX_HEAD_BYTES; an answer has to be taken within the same time. At most `max_connections` are
served at once; beyond that the connection that has been waiting longest for its request is closed in favour of the new
one, so that idle connections cannot keep a probe out, and if there is none, the answer is 503.
"""

from __future__ import annotations

import errno
import json
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

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from outrider.errors import OutboxError, SettingsError
from outrider.telemetry.health import Health
from outrider.telemetry.logs import get_logger
from outrider.telemetry.metrics import Metrics

MAX_HEAD_BYTES = 8192
MAX_DRAINED_BYTES = 256 * 1024
DRAIN_SECONDS = 0.5
POLL_SECONDS = 0.1

Answer = tuple[HTTPStatus, str, bytes]

log = get_logger(__name__)


class HttpServer:
    """The endpoints of one service. `status` gives what /status shows; it is called on a thread of this server."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        metrics: Metrics,
        health: Health,
        status: Callable[[], Mapping[str, object]],
        timeout_seconds: float = 5.0,
        max_connections: int = 16,
    ) -> None:
        self._host = host
        self._configured_port = port
        self._metrics = metrics
        self._health = health
        self._status = status
        self._timeout_seconds = timeout_seconds
        self._max_connections = max_connections
        self._listener: _Listener | None = None

    def start(self) -> None:
        """Bind and serve; a SettingsError in one line if the address cannot be had."""
        self._listener = listener = self._bind()
        threading.Thread(target=listener.serve_forever, args=(POLL_SECONDS,), name="http", daemon=True).start()
        log.info("http_listening", host=self._host, port=self.port)

    @property
    def port(self) -> int:
        """The port, also where 0 was configured; known from `start` on."""
        assert self._listener is not None, "the server is not started"
        return int(self._listener.server_address[1])

    def close(self) -> None:
        """Stop listening and cut idle connections; answers on their way are finished. May be called twice."""
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.shutdown()
            listener.server_close()

    def _bind(self) -> _Listener:
        host, port = self._host, self._configured_port
        where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
            return _Listener(family, address, self._answer, self._timeout_seconds, self._max_connections)
        except (socket.gaierror, UnicodeError):
            raise SettingsError(f"http_host: {host!r} does not resolve to an address") from None
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise SettingsError(f"http_port: {where} is in use") from None
            raise SettingsError(f"http_host, http_port: cannot listen on {where}: {error.strerror}") from None

    def _answer(self, path: str, accept: str) -> Answer:
        match path:
            case "/metrics":
                return _exposition(self._metrics.registry, accept)
            case "/healthz":
                return _verdict(*self._health.healthz())
            case "/readyz":
                return _verdict(*self._health.readyz())
            case "/status":
                try:
                    return _json(HTTPStatus.OK, self._status())
                except OutboxError as error:
                    return _json(HTTPStatus.SERVICE_UNAVAILABLE, {"error": str(error)})
            case _:
                return _text(HTTPStatus.NOT_FOUND, "try /metrics, /healthz, /readyz or /status")


class _Listener(ThreadingTCPServer):
    """Accepts, and bounds how many connections there are."""

    # Not HTTPServer: that one looks up the host's name, which can take seconds where DNS does not answer.
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
        self._idle: dict[socket.socket, None] = {}  # no whole request yet, the longest waiting first
        self._lock = threading.Lock()
        super().__init__(address, _Handler)

    def get_request(self) -> tuple[socket.socket, Any]:
        try:
            return super().get_request()
        except OSError:
            time.sleep(POLL_SECONDS)  # out of file descriptors: accepting again at once would only burn CPU
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._slots.acquire(blocking=False):
            self._cut_longest_idle()
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
        except RuntimeError:  # no thread to be had
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
        """The connection has its request, or is about to be closed: it is not to be cut any more."""
        with self._lock:
            self._idle.pop(request, None)

    def server_close(self) -> None:
        super().server_close()
        while self._cut_longest_idle():
            pass

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        log.debug("http_connection_failed", error=type(sys.exception()).__name__)

    def _cut_longest_idle(self) -> bool:
        with self._lock:
            longest = next(iter(self._idle), None)
            if longest is None:
                return False
            del self._idle[longest]
            with suppress(OSError):
                longest.shutdown(socket.SHUT_RDWR)  # wakes its thread, which closes it
            return True


class _Handler(BaseHTTPRequestHandler):
    """One connection: one request, one answer. The head is read here, under one deadline; the parsing is stdlib's."""

    server: _Listener
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
            answer = _text(HTTPStatus.INTERNAL_SERVER_ERROR, "see the log")
        self._send(answer)

    def _read_head(self) -> bytes | None:
        """Everything up to the empty line, or what came before it grew too long; None if it did not come in time."""
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
        self._send(_text(status, status.phrase))
        # Closing with unread bytes resets the connection, and the client would never see why.
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
        """What stdlib's parser refuses: without its page that repeats the request."""
        self._refuse(HTTPStatus(code))

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:  # noqa: ARG002
        log.debug("http_request", method=self.command, path=getattr(self, "path", "")[:100], status=int(code))


def _exposition(registry: CollectorRegistry, accept: str) -> Answer:
    try:
        encode, content_type = choose_encoder(accept)
        body = encode(registry)
    except (TypeError, ValueError):  # a version that is not made of numbers
        encode, content_type = choose_encoder("")
        body = encode(registry)
    return HTTPStatus.OK, content_type, body


def _verdict(ok: bool, facts: Mapping[str, object]) -> Answer:
    return _json(HTTPStatus.OK if ok else HTTPStatus.SERVICE_UNAVAILABLE, facts)


def _json(status: HTTPStatus, body: Mapping[str, object]) -> Answer:
    return status, "application/json", json.dumps(body, default=str).encode() + b"\n"


def _text(status: HTTPStatus, text: str) -> Answer:
    return status, "text/plain; charset=utf-8", text.encode() + b"\n"
