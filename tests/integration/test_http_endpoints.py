"""The HTTP endpoints over real sockets with friendly and hostile clients; and reports that a Sentry server receives."""

from __future__ import annotations

import gzip
import http.client
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text
from pydantic import SecretStr
from structlog.testing import capture_logs

from outrider.errors import DatabaseError, OutboxError, SettingsError
from outrider.telemetry.health import Health
from outrider.telemetry.http_endpoints import HttpEndpoints
from outrider.telemetry.http_server import MAX_HEAD_BYTES
from outrider.telemetry.metrics import Metrics
from outrider.telemetry.sentry import configure_sentry
from tests.fixtures.metric_catalogue import CATALOGUE
from tests.fixtures.waiting import wait_for

TIMEOUT_SECONDS = 0.3


class Service:
    """Endpoints with their metrics, health and status."""

    def __init__(self, **options: float) -> None:
        self.metrics = Metrics("cdc-relay")
        self.health = Health()
        self.status: Callable[[], dict[str, object]] = lambda: {"queues": {"pending": 3}}
        self.server = HttpEndpoints(
            "127.0.0.1",
            0,
            metrics=self.metrics,
            health=self.health,
            status=lambda: self.status(),
            **{"timeout_seconds": TIMEOUT_SECONDS, **options},  # type: ignore[arg-type]
        )
        self.server.start()

    def request(self, method: str, path: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
        with closing(http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=10)) as connection:
            connection.request(method, path, headers=headers)
            response = connection.getresponse()
            return response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()

    def get(self, path: str, **headers: str) -> tuple[int, bytes]:
        status, _, body = self.request("GET", path, **headers)
        return status, body

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.server.port), timeout=10)

    def send_raw(self, request: bytes) -> bytes:
        with self.connect() as client:
            client.sendall(request)
            return read_all(client)


def read_all(client: socket.socket) -> bytes:
    """Read until the server closes the connection. A reset raises."""
    received = b""
    while part := client.recv(65536):
        received += part
    return received


@contextmanager
def running(**options: float) -> Iterator[Service]:
    service = Service(**options)
    try:
        yield service
    finally:
        service.server.close()


@pytest.fixture
def service() -> Iterator[Service]:
    with running() as service:
        yield service


def test_metrics_hold_every_documented_name_in_both_formats(service: Service) -> None:
    service.metrics.published(["orders"])
    service.metrics.message_age.observe_many([0.001, 0.002])
    service.metrics.slot_status.set("reserved")
    status, headers, body = service.request("GET", "/metrics")
    assert (status, headers["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    plain = {family.name: family for family in parse_text(body.decode())}
    assert {spec.name.removesuffix("_total") for spec in CATALOGUE} <= plain.keys()
    assert plain["process_cpu_seconds"].samples[0].value > 0

    status, headers, body = service.request("GET", "/metrics", Accept="application/openmetrics-text; version=1.0.0")
    assert status == 200
    assert headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    families = parse_openmetrics(body.decode())  # type: ignore[no-untyped-call]
    assert {spec.name.removesuffix("_total") for spec in CATALOGUE} <= {family.name for family in families}


@pytest.mark.parametrize(
    "accept",
    [
        "*/*",
        "application/openmetrics-text; version=x",
        "application/openmetrics-text; version=99.0.0; escaping=none",
        "text/plain; version=1.0.x",
        ";;,=;version=",
        "\xff" * 500,
    ],
)
def test_a_strange_accept_header_still_gets_metrics(service: Service, accept: str) -> None:
    status, body = service.get("/metrics", Accept=accept)
    assert status == 200
    assert b"outbox_pending" in body


def test_healthz_follows_the_loop_and_the_connection(service: Service) -> None:
    assert service.get("/healthz")[0] == 200
    service.health.connection_silent("nothing for 30 s")
    status, body = service.get("/healthz")
    assert status == 503
    assert json.loads(body)["reason"] == "the connection is silent: nothing for 30 s"


def test_readyz_follows_the_role_and_a_standby_is_ready(service: Service) -> None:
    assert service.get("/readyz")[0] == 503
    service.health.set_ready("standby", "relay-1 holds the slot")
    status, body = service.get("/readyz")
    assert status == 200
    assert json.loads(body) == {"ready": True, "role": "standby", "reason": "relay-1 holds the slot"}


def test_status_is_the_services_status_as_json(service: Service) -> None:
    status, headers, body = service.request("GET", "/status?pretty=1")
    assert (status, headers["content-type"]) == (200, "application/json")
    assert json.loads(body) == {"queues": {"pending": 3}}


def test_a_status_that_fails_says_why_and_a_bug_is_only_logged(service: Service) -> None:
    def fails(error: Exception) -> Callable[[], dict[str, object]]:
        def status() -> dict[str, object]:
            raise error

        return status

    service.status = fails(DatabaseError("the database does not answer: is it running?"))
    status, body = service.get("/status")
    assert (status, json.loads(body)) == (503, {"error": "the database does not answer: is it running?"})
    service.status = fails(KeyError("secret"))
    with capture_logs() as events:
        assert service.get("/status") == (500, b"see the log\n")
        assert [event["event"] for event in events if event["log_level"] == "error"] == ["http_request_failed"]
    assert service.get("/healthz")[0] == 200


@pytest.mark.parametrize("path", ["/metrics", "/healthz", "/status"])
def test_head_answers_as_get_without_the_body(service: Service, path: str) -> None:
    status, headers, body = service.request("HEAD", path)
    assert (status, body) == (200, b"")
    assert int(headers["content-length"]) > 0


@pytest.mark.parametrize(
    "path", ["/", "/metrics/", "/../etc/passwd", "/%2e%2e/etc/passwd", "//metrics/../x", "/METRICS"]
)
def test_any_other_path_is_not_found_and_lists_nothing(service: Service, path: str) -> None:
    assert service.get(path) == (404, b"try /metrics, /healthz, /readyz or /status\n")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "TRACE", "get", "X" * 100])
def test_only_get_and_head_are_allowed(service: Service, method: str) -> None:
    status, headers, body = service.request(method, "/metrics")
    assert (status, headers["allow"], body) == (405, "GET, HEAD", b"Method Not Allowed\n")


def test_a_client_that_is_still_sending_its_body_sees_the_refusal_rather_than_a_reset() -> None:
    with running(timeout_seconds=5) as service, service.connect() as client:
        client.sendall(b"POST /status HTTP/1.1\r\nContent-Length: 100000\r\n\r\n")
        assert read_all(client).startswith(b"HTTP/1.0 405 "), "the refusal does not wait for the body"
        for _ in range(10):
            client.sendall(b"x" * 10_000)
        client.shutdown(socket.SHUT_WR)


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET /healthz HTTP/1.1\r\nX-Filler: " + b"x" * MAX_HEAD_BYTES + b"\r\n\r\n", 431),
        (b"GET /healthz HTTP/1.1\r\nX-Filler: " + b"x" * 200_000, 431),
        (b"GET /" + b"x" * (MAX_HEAD_BYTES + 1), 431),
        (b"GET /healthz HTTP/1.1\r\n" + b"A: b\r\n" * 200 + b"\r\n", 431),
        (b"GET /healthz HTTP/2.0\r\n\r\n", 505),
        (b"GET /healthz HTTP/x.y\r\n\r\n", 400),
        (b"GET /healthz with spaces HTTP/1.1\r\n\r\n", 400),
        (b"<script>alert(1)</script> x y z\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 \r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\n\n", 200),
    ],
)
def test_malformed_and_oversized_requests_are_refused_without_being_repeated(
    service: Service, request_bytes: bytes, status: int
) -> None:
    answer = service.send_raw(request_bytes)
    assert answer.startswith(b"HTTP/1.0 %d " % status), answer[:80]
    assert b"script" not in answer
    assert service.get("/healthz")[0] == 200


def test_a_client_that_sends_one_byte_and_waits_is_disconnected_at_the_timeout(service: Service) -> None:
    with service.connect() as client:
        client.sendall(b"G")
        started = time.monotonic()
        assert read_all(client) == b""
        assert TIMEOUT_SECONDS * 0.8 < time.monotonic() - started < TIMEOUT_SECONDS + 0.5


def test_a_client_that_sends_single_bytes_is_disconnected_at_the_same_timeout(service: Service) -> None:
    with service.connect() as client:
        started = time.monotonic()
        stop = threading.Event()

        def drip() -> None:
            while not stop.wait(TIMEOUT_SECONDS / 10):
                try:
                    client.sendall(b"G")
                except OSError:
                    return

        dripping = threading.Thread(target=drip)
        dripping.start()
        assert read_all(client) == b""
        elapsed = time.monotonic() - started
        stop.set()
        dripping.join()
    assert elapsed < TIMEOUT_SECONDS + 0.5


def test_a_client_that_does_not_read_its_answer_is_disconnected(service: Service) -> None:
    service.status = lambda: {"filler": "x" * 50_000_000}
    with service.connect() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.sendall(b"GET /status HTTP/1.0\r\n\r\n")
        wait_for(lambda: connection_threads() == 1)
        wait_for(lambda: connection_threads() == 0, deadline_seconds=5, message="the connection is still served")


def connection_threads() -> int:
    return sum("process_request_thread" in thread.name for thread in threading.enumerate())


def test_idle_connections_cannot_keep_a_probe_out() -> None:
    with running(timeout_seconds=60, max_connections=4) as service, ExitStack() as stack:
        idle = [stack.enter_context(service.connect()) for _ in range(12)]
        for client in idle:
            client.sendall(b"GET /heal")
        assert service.get("/healthz")[0] == 200
        assert connection_threads() <= 4
        assert read_all(idle[0]) == b"", "the one that waited longest is cut first"


def test_connections_beyond_the_limit_get_503_and_the_others_get_their_answer() -> None:
    with running(timeout_seconds=10, max_connections=2) as service, ThreadPoolExecutor(2) as pool:
        release, entered = threading.Event(), threading.Semaphore(0)

        def slow() -> dict[str, object]:
            entered.release()
            release.wait(10)
            return {"slow": True}

        service.status = slow
        answers = [pool.submit(service.get, "/status") for _ in range(2)]
        try:
            assert entered.acquire(timeout=5)
            assert entered.acquire(timeout=5)
            with service.connect() as client:
                assert read_all(client).startswith(b"HTTP/1.0 503 ")
        finally:
            release.set()
        assert [answer.result(10)[0] for answer in answers] == [200, 200]
        assert service.get("/healthz")[0] == 200


def test_concurrent_scrapes_are_complete_while_the_service_counts() -> None:
    with running(timeout_seconds=20) as service, ThreadPoolExecutor(8) as pool:
        stop = threading.Event()

        def work() -> None:
            number = 0
            while not stop.wait(0.001):
                number += 1
                service.metrics.published([f"queue.{number}"] * 10)
                service.metrics.message_age.observe_many([0.001] * 10)

        working = threading.Thread(target=work)
        working.start()
        try:
            answers = list(pool.map(lambda _: service.get("/metrics"), range(40)))
        finally:
            stop.set()
            working.join()
    for status, body in answers:
        assert status == 200
        families = {family.name: family for family in parse_text(body.decode())}
        ages = {s.labels.get("le", s.name): s.value for s in families["outbox_message_age_seconds"].samples}
        assert ages["+Inf"] == ages["outbox_message_age_seconds_count"]
        assert ages["outbox_message_age_seconds_sum"] == pytest.approx(ages["+Inf"] * 0.001)


def test_a_port_in_use_is_a_settings_error_in_one_line(service: Service) -> None:
    port = service.server.port
    second = HttpEndpoints("127.0.0.1", port, metrics=service.metrics, health=service.health, status=dict)
    with pytest.raises(SettingsError) as caught:
        second.start()
    assert isinstance(caught.value, OutboxError)
    assert str(caught.value) == f"http_port: 127.0.0.1:{port} is in use"
    second.close()


@pytest.mark.parametrize(
    ("host", "text"),
    [
        ("no such host.invalid", "http_host: 'no such host.invalid' does not resolve to an address"),
        ("x" * 300, f"http_host: '{'x' * 300}' does not resolve to an address"),
        ("192.0.2.1", "http_host, http_port: cannot listen on 192.0.2.1:0: Cannot assign requested address"),
    ],
)
def test_an_address_of_another_machine_is_a_settings_error_in_one_line(host: str, text: str) -> None:
    server = HttpEndpoints(host, 0, metrics=Metrics("cdc-relay"), health=Health(), status=dict)
    with pytest.raises(SettingsError) as caught:
        server.start()
    assert str(caught.value) == text


def test_after_close_the_port_is_free_and_idle_clients_are_disconnected() -> None:
    with running(timeout_seconds=60) as service:
        port = service.server.port
        with service.connect() as idle:
            wait_for(lambda: connection_threads() == 1)
            service.server.close()
            assert read_all(idle) == b""
        service.server.close()
    successor = HttpEndpoints("127.0.0.1", port, metrics=service.metrics, health=service.health, status=dict)
    successor.start()
    successor.close()


def test_requests_are_debug_events_and_nothing_else(service: Service) -> None:
    with capture_logs() as events:
        service.get("/healthz")
        service.send_raw(b"nonsense\r\n\r\n")
        with service.connect() as client:
            client.sendall(b"G")
        wait_for(lambda: connection_threads() == 0)
    assert {event["log_level"] for event in events} == {"debug"}
    assert "http_request" in {event["event"] for event in events}


@pytest.fixture
def sentry() -> Iterator[tuple[SecretStr, list[bytes]]]:
    """A fake Sentry server: its DSN, and the reports that it received."""
    reports: list[bytes] = []

    class Ingest(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            reports.append(gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *args: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Ingest) as server:
        serving = threading.Thread(target=server.serve_forever, args=(0.02,))
        serving.start()
        yield SecretStr(f"http://key@127.0.0.1:{server.server_port}/1"), reports
        server.shutdown()
        serving.join()


def test_an_unexpected_error_is_reported_without_payload_password_or_command_line(
    sentry: tuple[SecretStr, list[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    dsn, reports = sentry
    monkeypatch.setattr(sys, "argv", ["cdc-relay", "--database-url", "postgresql://u:PASSWORD@h/d"])
    reporter = configure_sentry(dsn, service="cdc-relay", release="outrider@9.9")

    def deliver(payload: bytes) -> None:
        context = {"row": payload}
        raise RuntimeError(f"cannot parse\nDETAIL: row {context}") from ValueError("amqp://u:PASSWORD@h:1/ says no")

    try:
        deliver(b"PAYLOAD")
    except RuntimeError as error:
        reporter.capture(error)
    reporter.capture(DatabaseError("expected: not reported"))
    reporter.close()
    (report,) = reports
    event = json.loads(report.splitlines()[2])
    cause, error_reported = event["exception"]["values"]
    assert (error_reported["type"], error_reported["value"]) == ("RuntimeError", "cannot parse")
    assert cause["value"] == "amqp://***@h:1/ says no"
    assert event["release"] == "outrider@9.9"
    assert event["tags"] == {"service": "cdc-relay"}
    assert error_reported["stacktrace"]["frames"][-1]["function"] == "deliver"
    assert all("vars" not in frame for frame in error_reported["stacktrace"]["frames"])
    assert not {"user", "request", "breadcrumbs", "extra", "modules"} & event.keys()
    described = json.dumps({**event, "exception": [{**e, "stacktrace": None} for e in (cause, error_reported)]})
    assert "PASSWORD" not in described
    assert "PAYLOAD" not in described


def test_a_wrong_dsn_is_a_settings_error_that_does_not_repeat_it() -> None:
    for wrong in ("SECRETKEY", "ftp://SECRETKEY@host/1", "https://SECRETKEY@host/", "https://host/1"):
        with pytest.raises(SettingsError) as caught:
            configure_sentry(SecretStr(wrong), service="cdc-relay", release="1")
        assert str(caught.value) == "sentry_dsn: not a Sentry DSN (https://KEY@HOST/PROJECT)"


def test_without_a_dsn_nothing_is_reported_and_sentry_is_not_imported() -> None:
    program = (
        "import sys; from outrider.telemetry.sentry import configure_sentry as c;"
        "r = c(None, service='x', release='1');"
        "r.capture(ValueError('x')); r.close(); sys.exit('sentry_sdk' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
