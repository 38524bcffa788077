"""
The replication stream over TLS, where decrypted data can wait in a buffer that select() does not see.

On a server of version 17: the newest version here was built without TLS.
"""

from __future__ import annotations

import select
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from outrider.cdc_relay.pgoutput import INSERT, Commit, decode
from outrider.cdc_relay.replication_frames import FrameBatch
from outrider.cdc_relay.stream import ReplicationStream
from outrider.embedded.postgres import Postgres
from outrider.errors import ReplicationError
from tests.fixtures.certificates import make_certificate
from tests.fixtures.postgres_tls import require_tls, tls_url
from tests.fixtures.postgres_versions import postgres_binaries

SILENCE_SECONDS = 20.0
SIZES = (10, 4_000, 8_170, 8_192, 16_300, 16_384, 40_000)
"""Around libpq's buffer of 8 kB and a TLS record of 16 kB."""


@pytest.fixture
def server(private_postgres: Callable[..., Postgres], tmp_path: Path) -> Postgres:
    """Refuses connections without TLS; has a table `note`, a publication of it and a slot."""
    server = private_postgres(binaries=postgres_binaries(17))
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        connection.execute("CREATE TABLE note (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, body text)")
        connection.execute("ALTER TABLE note ALTER body SET STORAGE EXTERNAL")
        connection.execute("CREATE PUBLICATION notes FOR TABLE note")
        connection.execute("SELECT pg_create_logical_replication_slot('notes', 'pgoutput')")
    make_certificate(tmp_path)
    require_tls(server, tmp_path)
    return server


def test_every_row_arrives_without_waiting_for_the_next(server: Postgres, tmp_path: Path) -> None:
    """A reader that waits for the socket after each read, as the relay does, misses no decrypted data."""
    dsn = tls_url(server, sslmode="verify-full", sslrootcert=str(tmp_path / "cert.pem"))
    with psycopg.connect(dsn, autocommit=True) as connection, ReplicationStream.open(dsn) as stream:
        stream.start("notes", "notes")
        assert connection.execute("SELECT ssl FROM pg_stat_ssl JOIN pg_stat_replication USING (pid)").fetchall() == [
            (True,)
        ]
        for size in SIZES:
            for count in (1, 2, 3, 50):
                connection.execute(
                    "INSERT INTO note (body) SELECT repeat('x', %s) FROM generate_series(1, %s)", (size, count)
                )
                assert rows_of_next_transaction(stream) == count, f"{count} rows of {size} bytes"


def rows_of_next_transaction(stream: ReplicationStream) -> int:
    rows = 0
    while True:
        if not stream.has_more:
            assert select.select([stream], [], [], SILENCE_SECONDS)[0], f"nothing more came after {rows} rows"
        batch: FrameBatch | None = stream.read(7)
        for payload in () if batch is None else batch.messages:
            message = decode(payload)
            rows += message is INSERT
            if isinstance(message, Commit):
                return rows


def test_a_server_with_an_untrusted_certificate_is_refused(server: Postgres) -> None:
    with pytest.raises(ReplicationError, match=r"cannot open a replication connection.*certificate"):
        ReplicationStream.open(tls_url(server, sslmode="verify-full", sslrootcert="system"))


def test_a_client_without_tls_gets_the_error_text_of_the_server(server: Postgres) -> None:
    with pytest.raises(ReplicationError, match="no encryption"):
        ReplicationStream.open(tls_url(server, sslmode="disable"))
