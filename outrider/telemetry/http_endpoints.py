"""
The HTTP endpoints of a service: /metrics, /healthz, /readyz and /status, for scrapers, probes and people.

Bound to loopback by default, without TLS and without users: any client that reaches the port may read. http_server.py
says how the server is protected.
"""

from __future__ import annotations

import errno
import socket
import threading
from collections.abc import Callable, Mapping
from http import HTTPStatus

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from outrider.errors import OutboxError, SettingsError
from outrider.telemetry.health import Health
from outrider.telemetry.http_server import POLL_SECONDS, Answer, BoundedHttpServer, json_answer, text_answer
from outrider.telemetry.logs import get_logger
from outrider.telemetry.metrics import Metrics

log = get_logger(__name__)


class HttpEndpoints:
    """The endpoints of one service. /status shows the result of `status`, which is called on a thread of the server."""

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
        self._server: BoundedHttpServer | None = None

    def start(self) -> None:
        """Bind and serve. SettingsError if the address cannot be used."""
        self._server = server = self._bind()
        threading.Thread(target=server.serve_forever, args=(POLL_SECONDS,), name="http", daemon=True).start()
        log.info("http_listening", host=self._host, port=self.port)

    @property
    def port(self) -> int:
        """The bound port, also if 0 was configured. Only after `start`."""
        assert self._server is not None, "the server is not started"
        return int(self._server.server_address[1])

    def close(self) -> None:
        """Stop listening and close idle connections; running answers are finished. May be called twice."""
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()

    def _bind(self) -> BoundedHttpServer:
        host, port = self._host, self._configured_port
        where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
            return BoundedHttpServer(family, address, self._answer, self._timeout_seconds, self._max_connections)
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
                return _probe_answer(*self._health.healthz())
            case "/readyz":
                return _probe_answer(*self._health.readyz())
            case "/status":
                try:
                    return json_answer(HTTPStatus.OK, self._status())
                except OutboxError as error:
                    return json_answer(HTTPStatus.SERVICE_UNAVAILABLE, {"error": str(error)})
            case _:
                return text_answer(HTTPStatus.NOT_FOUND, "try /metrics, /healthz, /readyz or /status")


def _exposition(registry: CollectorRegistry, accept: str) -> Answer:
    try:
        encode, content_type = choose_encoder(accept)
        body = encode(registry)
    except (TypeError, ValueError):  # an Accept header with a version that is not a number
        encode, content_type = choose_encoder("")
        body = encode(registry)
    return HTTPStatus.OK, content_type, body


def _probe_answer(ok: bool, facts: Mapping[str, object]) -> Answer:
    return json_answer(HTTPStatus.OK if ok else HTTPStatus.SERVICE_UNAVAILABLE, facts)
