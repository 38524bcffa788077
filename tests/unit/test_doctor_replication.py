"""The replication connection: a pooler that refuses replication, and an address where no server listens."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from outrider.operations.doctor.replication import check_connection, probe

SSL_REQUEST = 80877103
GSS_REQUEST = 80877104


@contextmanager
def pooler(refusal: str) -> Iterator[str]:
    """A server that refuses every connection with this message. Yields its address."""

    def serve() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            with client:
                while struct.unpack("!ii", client.recv(8))[1] in (SSL_REQUEST, GSS_REQUEST):
                    client.sendall(b"N")
                client.recv(4096)
                fields = b"SFATAL\0C08P01\0M" + refusal.encode() + b"\0\0"
                client.sendall(b"E" + struct.pack("!i", len(fields) + 4) + fields)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"postgresql://shop:s3cret@127.0.0.1:{listener.getsockname()[1]}/shop"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(30)


def test_a_pooler_that_refuses_replication_is_recognised_and_the_password_stays_secret() -> None:
    with pooler("unsupported startup parameter: replication") as dsn:
        finding = check_connection(probe(dsn, connect_timeout_seconds=10), database="shop", system=None)
    assert finding.level == "failed"
    assert "unsupported startup parameter: replication" in finding.found
    assert "a pooler refuses replication: set replication_url" in finding.remedy
    assert "s3cret" not in finding.line


def test_an_address_where_no_server_listens_is_one_line() -> None:
    finding = check_connection(
        probe("postgresql://shop@127.0.0.1:1/shop", connect_timeout_seconds=2), database="shop", system=None
    )
    assert finding.level == "failed"
    assert "Connection refused" in finding.line
    assert "\n" not in finding.line
