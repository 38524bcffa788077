"""The fault proxy in front of an echo server: the client sees each fault and its end."""

from __future__ import annotations

import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from tests.fixtures.proxy import FaultProxy
from tests.fixtures.waiting import wait_for

StartProxy = Callable[[str, int], FaultProxy]
Connect = Callable[[], socket.socket]

SHORT_SECONDS = 0.1  # how long silence is listened to


class Echo(socketserver.ThreadingTCPServer):
    """Returns and records the bytes that it receives."""

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), EchoHandler)
        self.received = bytearray()
        self.resets = 0


class EchoHandler(socketserver.BaseRequestHandler):
    server: Echo

    def handle(self) -> None:
        try:
            while data := self.request.recv(65536):
                self.server.received += data
                self.request.sendall(data)
        except ConnectionError:
            self.server.resets += 1


@pytest.fixture
def echo() -> Iterator[Echo]:
    with Echo() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def proxy(fault_proxy: StartProxy, echo: Echo) -> FaultProxy:
    host, port = echo.server_address[:2]
    return fault_proxy(str(host), int(port))


@pytest.fixture
def connect(proxy: FaultProxy) -> Iterator[Connect]:
    opened: list[socket.socket] = []

    def open_one() -> socket.socket:
        opened.append(socket.create_connection((proxy.host, proxy.port), timeout=5))
        return opened[-1]

    yield open_one
    for client in opened:
        client.close()


def read_exactly(client: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size and (data := client.recv(size - len(received))):
        received += data
    return received


def ask(client: socket.socket, text: bytes) -> bytes:
    client.sendall(text)
    return read_exactly(client, len(text))


def is_silent(client: socket.socket) -> bool:
    client.settimeout(SHORT_SECONDS)
    try:
        client.recv(1, socket.MSG_PEEK)
    except TimeoutError:
        return True
    finally:
        client.settimeout(5)
    return False


def test_a_healthy_proxy_forwards_and_counts_all_bytes(proxy: FaultProxy, connect: Connect) -> None:
    first, second = connect(), connect()
    assert ask(first, b"hello") == b"hello"
    assert ask(second, b"you") == b"you"
    assert proxy.connections_accepted == 2
    assert proxy.open_connections == 2
    assert proxy.bytes_forwarded("to_server") == 8
    first.close()
    wait_for(lambda: proxy.open_connections == 1, message="the closed connection is still counted")


def test_a_large_body_arrives_whole(connect: Connect) -> None:
    body = bytes(range(256)) * 20_000
    client = connect()
    sender = threading.Thread(target=client.sendall, args=[body])
    sender.start()
    assert read_exactly(client, len(body)) == body
    sender.join()


def test_a_slow_reader_gets_everything_after_the_other_side_has_closed(fault_proxy: StartProxy) -> None:
    body = bytes(range(256)) * 8_000  # more than the client's socket takes: the rest waits in the proxy
    with socket.create_server(("127.0.0.1", 0)) as listener:
        proxy_to_sender = fault_proxy("127.0.0.1", listener.getsockname()[1])
        with socket.create_connection((proxy_to_sender.host, proxy_to_sender.port), timeout=5) as client:
            client.shutdown(socket.SHUT_WR)
            sender, _ = listener.accept()
            with sender:
                sender.settimeout(5)
                sender.sendall(body)
            assert read_exactly(client, len(body) + 1) == body


def test_the_end_of_one_direction_leaves_the_other_open(connect: Connect) -> None:
    client = connect()
    client.sendall(b"last words")
    client.shutdown(socket.SHUT_WR)
    assert read_exactly(client, 100) == b"last words"


def test_a_throttled_line_takes_its_time_and_healing_ends_that(proxy: FaultProxy, connect: Connect) -> None:
    client = connect()
    proxy.throttle(100_000, "to_server")
    started = time.monotonic()
    assert ask(client, bytes(30_000)) == bytes(30_000)
    assert time.monotonic() - started >= 0.3
    client.sendall(bytes(3_000_000))
    proxy.heal()
    assert read_exactly(client, 3_000_000) == bytes(3_000_000)


def test_latency_delays_data_without_lowering_the_throughput(proxy: FaultProxy, connect: Connect) -> None:
    client = connect()
    proxy.latency(0.05)
    began = time.monotonic()
    for _ in range(20):
        client.sendall(b"x" * 100)
    assert len(read_exactly(client, 2000)) == 2000
    elapsed = time.monotonic() - began
    assert 0.1 <= elapsed < 1.0, "twice 50 ms, however many pieces"
    proxy.heal()
    assert ask(client, b"fast") == b"fast"


def test_a_black_hole_holds_back_and_healing_delivers(proxy: FaultProxy, connect: Connect, echo: Echo) -> None:
    client = connect()
    assert ask(client, b"1") == b"1"
    proxy.blackhole()
    client.sendall(b"2")
    assert is_silent(client)
    assert echo.received == b"1"
    proxy.heal()
    assert read_exactly(client, 1) == b"2"


def test_an_answer_can_be_lost_after_the_request_took_effect(proxy: FaultProxy, connect: Connect, echo: Echo) -> None:
    client = connect()
    proxy.blackhole("to_client")
    client.sendall(b"commit")
    wait_for(lambda: echo.received == b"commit", message="the request did not arrive")
    assert is_silent(client)
    proxy.cut()
    with pytest.raises(ConnectionResetError):
        client.recv(1)


def test_a_cut_resets_both_sides_and_new_connections_work(proxy: FaultProxy, connect: Connect, echo: Echo) -> None:
    client = connect()
    assert ask(client, b"1") == b"1"
    proxy.cut()
    with pytest.raises(ConnectionResetError):
        client.recv(1)
    wait_for(lambda: echo.resets == 1, message="the server has not seen the reset")
    assert proxy.open_connections == 0
    assert ask(connect(), b"2") == b"2"


def test_a_connection_can_be_cut_while_it_is_being_opened(proxy: FaultProxy) -> None:
    for _ in range(50):
        with socket.create_connection((proxy.host, proxy.port), timeout=5) as client:
            while not proxy.connections_accepted:  # a spin, not a pause: the first steps of the link are to be met
                pass
            proxy.cut()
            proxy.connections_accepted = 0
            with pytest.raises(ConnectionResetError):
                client.recv(1)


def test_refuse_affects_only_new_connections(proxy: FaultProxy, connect: Connect) -> None:
    client = connect()
    assert ask(client, b"1") == b"1"
    proxy.refuse()
    with pytest.raises(ConnectionRefusedError):
        connect()
    assert ask(client, b"2") == b"2"
    proxy.heal()
    assert ask(connect(), b"3") == b"3"


def test_a_message_is_torn_after_the_given_number_of_bytes(proxy: FaultProxy, connect: Connect, echo: Echo) -> None:
    client = connect()
    proxy.tear_after(7, "to_server")
    client.sendall(b"1234")
    assert read_exactly(client, 4) == b"1234"
    client.sendall(b"5678")
    with pytest.raises(ConnectionResetError):
        read_exactly(client, 100)
    wait_for(lambda: echo.resets == 1, message="the server has not seen the reset")
    assert echo.received == b"1234567"
    assert ask(connect(), b"whole again") == b"whole again"


def test_an_unreachable_server_resets_the_client(fault_proxy: StartProxy) -> None:
    def connect_and_read(proxy: FaultProxy) -> bytes:
        with socket.create_connection((proxy.host, proxy.port), timeout=5) as client:
            return client.recv(1)

    with socket.socket() as closed_port:
        closed_port.bind(("127.0.0.1", 0))  # bound, not listening: connections are refused
        proxy_to_closed_port = fault_proxy("127.0.0.1", closed_port.getsockname()[1])
        with pytest.raises(ConnectionResetError):  # while it connects or when it reads, whichever is first
            connect_and_read(proxy_to_closed_port)


def test_through_replaces_the_address_of_a_url(proxy: FaultProxy) -> None:
    through = proxy.through("amqp://guest:p%40ss@127.0.0.1:5672//")
    assert through == f"amqp://guest:p%40ss@127.0.0.1:{proxy.port}//"


def test_a_connection_that_sends_the_fatal_bytes_is_reset_each_time(
    proxy: FaultProxy, echo: Echo, connect: Connect
) -> None:
    proxy.reset_on(b"fatal")
    for _ in range(2):
        client = connect()
        assert ask(client, b"harmless, fa") == b"harmless, fa"
        client.sendall(b"tal")  # in two pieces
        with pytest.raises(ConnectionResetError):
            read_exactly(client, 1)
        proxy.heal()
    assert echo.received == b"harmless, fa" * 2
