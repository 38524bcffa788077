"""The replication stream against real servers: frames, confirmed positions, and every way in which a stream ends."""

from __future__ import annotations

import json
import select
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
from psycopg import sql

from outrider.cdc_relay.lsn import Lsn
from outrider.cdc_relay.pgoutput import Commit, Insert, Relation, RowReader, decode
from outrider.cdc_relay.replication_frames import FrameBatch, Keepalive
from outrider.cdc_relay.stream import ReplicationStream
from outrider.embedded.postgres import Postgres
from outrider.errors import ReplicationError
from outrider.storage.server_time import to_datetime
from tests.fixtures.database import Database, drop_database
from tests.fixtures.proxy import FaultProxy
from tests.fixtures.servers import SharedPostgres, address_of
from tests.fixtures.waiting import wait_for

UNDEFINED_OBJECT = "42704"
OBJECT_IN_USE = "55006"
OBJECT_NOT_IN_PREREQUISITE_STATE = "55000"
ADMIN_SHUTDOWN = "57P01"
SYNTAX_ERROR = "42601"


@dataclass(frozen=True)
class Source:
    """A database with a table `note`, a publication of it and a slot."""

    database: Database
    connection: psycopg.Connection[Any]
    slot: str
    publication: str = "notes"

    def run(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        cursor = self.connection.execute(statement.encode(), values or None)
        return cursor.fetchall() if cursor.description else []

    def open(self, dsn: str | None = None) -> ReplicationStream:
        with ExitStack() as on_failure:
            stream = on_failure.enter_context(ReplicationStream.open(dsn or self.database.dsn))
            stream.start(self.slot, self.publication)
            on_failure.pop_all()
        return stream

    def confirmed(self) -> Lsn:
        ((text,),) = self.run("SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = %s", self.slot)
        return Lsn.parse(text)

    def walsender(self) -> int | None:
        ((pid,),) = self.run("SELECT active_pid FROM pg_replication_slots WHERE slot_name = %s", self.slot)
        return None if pid is None else int(pid)


def make_source(database: Database, connection: psycopg.Connection[Any]) -> Source:
    source = Source(database, connection, slot=f"slot_{database.name}")
    source.run("CREATE TABLE note (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, body text)")
    source.run("CREATE PUBLICATION notes FOR TABLE note")
    source.run("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", source.slot)
    return source


@pytest.fixture
def source(database: Database) -> Iterator[Source]:
    with database.connect() as connection:
        yield make_source(database, connection)


class Tap:
    """Reads a stream as the relay does, and keeps everything that arrives."""

    def __init__(self, stream: ReplicationStream, wanted: list[str]) -> None:
        self.stream = stream
        self.wanted = wanted
        self.readers: dict[bytes, RowReader] = {}
        self.rows: list[tuple[Any, ...]] = []
        self.commits: list[Commit] = []
        self.keepalives: list[Keepalive] = []
        self.skipped: list[bytes] = []

    def read(self, limit: int = 1000, **options: int) -> FrameBatch | None:
        batch = self.stream.read(limit, **options)
        if batch is not None:
            for payload in batch.messages:
                self.take(payload)
            if batch.keepalive is not None:
                self.keepalives.append(batch.keepalive)
        return batch

    def take(self, payload: bytes) -> None:
        match decode(payload):
            case Insert.INSERT:
                self.rows.append(self.readers[payload[1:5]].read(payload))
            case Relation() as relation:
                names = {column.name for column in relation.columns}
                wanted = [name for name in self.wanted if name in names]
                self.readers[relation.relation_id.to_bytes(4)] = RowReader(relation, wanted)
            case Commit() as commit:
                self.commits.append(commit)
            case None:
                self.skipped.append(payload[:1])

    def until(self, condition: Callable[[], object], message: str = "it did not arrive in the stream") -> None:
        def read_and_check() -> bool:
            self.read()
            return bool(condition())

        wait_for(read_and_check, message=message)

    def fails(self) -> ReplicationError:
        """Read and confirm until the stream fails; return the error."""

        def read() -> None:
            self.read()
            if self.keepalives:
                self.stream.send_status(flushed=self.keepalives[-1].wal_end)

        return failure_of(read)


def failure_of(action: Callable[[], object]) -> ReplicationError:
    """Repeat the action until it fails."""
    errors: list[ReplicationError] = []

    def attempt() -> bool:
        try:
            action()
        except ReplicationError as error:
            errors.append(error)
        return bool(errors)

    wait_for(attempt, message="the stream did not fail")
    return errors[0]


def bodies(tap: Tap) -> list[str]:
    return [row[-1] for row in tap.rows]


# -- messages ----------------------------------------------------------------------------------------------------------


def test_a_row_of_every_type_arrives_as_it_was_written(source: Source) -> None:
    event_id = uuid.uuid4()
    moment = datetime(2031, 12, 24, 18, 30, 0, 123456, tzinfo=UTC)
    source.run("CREATE TYPE mood AS ENUM ('calm', 'angry')")
    source.run("CREATE DOMAIN short_text AS text CHECK (length(VALUE) < 100)")
    source.run(
        """
        CREATE TABLE everything (
            big bigint PRIMARY KEY, medium integer, small smallint, flag boolean, label text, code varchar(9),
            raw bytea, document json, document_b jsonb, event_id uuid, at timestamptz, parked timestamptz,
            grants aclitem, mood mood, short short_text, nothing text
        )
        """
    )
    source.run("ALTER PUBLICATION notes ADD TABLE everything")
    columns = [
        name
        for (name,) in source.run(
            "SELECT attname FROM pg_attribute WHERE attrelid = 'everything'::regclass AND attnum > 0 ORDER BY attnum"
        )
    ]
    document = '{"z": 1.10, "a": "\\u0000"}'
    with source.open() as stream:
        tap = Tap(stream, columns)
        source.run(
            "INSERT INTO everything VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, 'infinity', %s, %s, %s, NULL)",
            *(
                -(2**63),
                -1,
                32767,
                False,
                "Zażółć 🦊",
                "naïve",
                b"\x00\xff\\",
                document,
                '{"k": [1]}',
                event_id,
                moment,
            ),
            *("postgres=r/postgres", "angry", "kurz"),
        )
        tap.until(lambda: tap.rows)

    row = dict(zip(columns, tap.rows[0], strict=True))
    assert row.pop("event_id") == str(event_id)
    assert to_datetime(row.pop("at")) == moment
    assert json.loads(row.pop("document_b")) == {"k": [1]}
    assert row == {
        "big": -(2**63),
        "medium": -1,
        "small": 32767,
        "flag": False,
        "label": "Zażółć 🦊",
        "code": "naïve",
        "raw": b"\x00\xff\\",
        "document": document,
        "parked": 2**63 - 1,
        "grants": b"postgres=r/postgres",  # no binary format: the server falls back to text
        "mood": b"angry",
        "short": b"kurz",
        "nothing": None,
    }


def test_columns_may_be_added_dropped_and_reordered_while_the_stream_runs(source: Source) -> None:
    with source.open() as stream:
        tap = Tap(stream, ["extra", "id", "body"])
        source.run("INSERT INTO note (body) VALUES ('first')")
        source.run("ALTER TABLE note ADD COLUMN extra integer")
        source.run("INSERT INTO note (body, extra) VALUES ('second', 7)")
        source.run("ALTER TABLE note DROP COLUMN body")
        source.run("INSERT INTO note (extra) VALUES (8)")
        source.run("ALTER TABLE note ADD COLUMN body text")  # after extra now
        source.run("INSERT INTO note (extra, body) VALUES (9, 'fourth')")
        tap.until(lambda: len(tap.rows) == 4)

    assert tap.rows == [(1, "first"), (7, 2, "second"), (8, 3), (9, 4, "fourth")]


def test_what_is_not_an_insert_is_skipped(source: Source) -> None:
    with source.open() as stream:
        tap = Tap(stream, ["id", "body"])
        source.run("INSERT INTO note (body) VALUES ('one')")
        source.run("UPDATE note SET body = 'two'")
        source.run("DELETE FROM note")
        source.run("TRUNCATE note")
        source.run("INSERT INTO note (body) VALUES ('three')")
        tap.until(lambda: len(tap.rows) == 2)

    assert bodies(tap) == ["one", "three"]
    assert tap.skipped == [b"U", b"D", b"T"]


def test_a_rolled_back_transaction_does_not_arrive(source: Source) -> None:
    with source.open() as stream:
        tap = Tap(stream, ["body"])
        with source.connection.transaction(force_rollback=True):
            source.run("INSERT INTO note (body) VALUES ('never')")
        source.run("INSERT INTO note (body) VALUES ('committed')")
        tap.until(lambda: tap.rows)

    assert bodies(tap) == ["committed"]


def _message_count(batch: FrameBatch | None) -> int:
    return 0 if batch is None else len(batch.messages)


def test_a_big_transaction_arrives_in_pieces_and_in_order(source: Source) -> None:
    count = 30_000
    source.run("INSERT INTO note (body) SELECT repeat('x', 100) FROM generate_series(1, %s)", count)
    sizes = []
    with source.open() as stream:
        tap = Tap(stream, ["id"])

        def read_all() -> bool:
            while True:
                sizes.append(_message_count(tap.read(limit=50)))
                if not stream.has_more:
                    return bool(tap.commits)

        wait_for(read_all)

    assert [row[0] for row in tap.rows] == list(range(1, count + 1))
    assert max(sizes) == 50
    assert len(tap.commits) == 1


def test_large_rows_are_handed_out_a_few_at_a_time(source: Source) -> None:
    source.run("INSERT INTO note (body) SELECT repeat('x', 300000) FROM generate_series(1, 20)")
    with source.open() as stream:
        tap = Tap(stream, ["body"])
        most = 0

        def read() -> bool:
            nonlocal most
            most = max(most, _message_count(tap.read(max_bytes=1_000_000)))
            return bool(tap.commits)

        wait_for(read)

    assert [len(body) for body in bodies(tap)] == [300_000] * 20
    assert most <= 6  # begin, relation and four rows


def test_data_carries_positions_and_the_clock_of_the_server(source: Source) -> None:
    ((before,),) = source.run("SELECT clock_timestamp()")
    with source.open() as stream:
        tap = Tap(stream, ["body"])
        source.run("INSERT INTO note (body) VALUES ('x')")
        data: list[FrameBatch] = []

        def read() -> bool:
            if (batch := tap.read(limit=1)) is not None and batch.messages:
                data.append(batch)
            return bool(tap.commits)

        wait_for(read)
    ((after,),) = source.run("SELECT clock_timestamp()")

    assert len(data) == 4  # begin, relation, row and commit
    assert all(before <= to_datetime(item.sent_at) <= after for item in data)
    assert data[-1].wal_end == tap.commits[0].end_lsn


def test_text_arrives_as_utf8_from_a_database_in_another_encoding(postgres_server: SharedPostgres) -> None:
    latin1 = Database(f"latin1_{uuid.uuid4().hex[:8]}", postgres_server.url)
    with psycopg.connect(postgres_server.url, autocommit=True) as connection:
        statement = "CREATE DATABASE {} TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'"
        connection.execute(sql.SQL(statement).format(sql.Identifier(latin1.name)))
    try:
        with latin1.connect(client_encoding="UTF8") as connection:
            source = make_source(latin1, connection)
            source.run('ALTER TABLE note ADD COLUMN "größe" text')
            with source.open() as stream:
                tap = Tap(stream, ["größe", "body"])
                source.run('INSERT INTO note ("größe", body) VALUES (%s, %s)', "é", "ü")
                tap.until(lambda: tap.rows)
    finally:
        drop_database(latin1)

    assert tap.rows == [("é", "ü")]


def test_names_may_hold_quotes_commas_and_spaces(source: Source) -> None:
    name = """it's "the, best" \\ publication"""
    source.connection.execute(sql.SQL("CREATE PUBLICATION {} FOR TABLE note").format(sql.Identifier(name)))
    # The server looks the publication up as of the position that it decodes: move the slot past its creation.
    source.run("SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())", source.slot)
    with ReplicationStream.open(source.database.dsn) as stream:
        stream.start(source.slot, name)
        tap = Tap(stream, ["body"])
        source.run("INSERT INTO note (body) VALUES ('x')")
        tap.until(lambda: tap.rows)

        assert bodies(tap) == ["x"]


# -- status and keepalives ---------------------------------------------------------------------------------------------


def test_a_status_moves_the_slot(source: Source) -> None:
    with source.open() as stream:
        tap = Tap(stream, ["body"])
        source.run("INSERT INTO note (body) VALUES ('x')")
        tap.until(lambda: tap.commits)
        end_lsn = tap.commits[0].end_lsn
        assert source.confirmed() < end_lsn

        stream.send_status(flushed=end_lsn)

        assert not stream.wants_write
        wait_for(lambda: source.confirmed() == end_lsn)


def test_a_server_answers_a_reply_request_at_once(source: Source) -> None:
    with source.open() as stream:
        tap = Tap(stream, [])
        tap.until(lambda: tap.keepalives)
        tap.keepalives.clear()

        stream.send_status(flushed=Lsn(0), reply=True)

        tap.until(lambda: tap.keepalives)
        assert stream.silent_for() < 5


def test_keepalives_move_on_while_other_tables_are_written(source: Source) -> None:
    source.run("CREATE TABLE other (id integer)")
    with source.open() as stream:
        tap = Tap(stream, [])
        source.run("INSERT INTO other SELECT generate_series(1, 1000)")
        ((text,),) = source.run("SELECT pg_current_wal_insert_lsn()")
        source.run("INSERT INTO other VALUES (0)")

        tap.until(lambda: tap.keepalives and tap.keepalives[-1].wal_end >= Lsn.parse(text))

        stream.send_status(flushed=tap.keepalives[-1].wal_end)
        wait_for(lambda: source.confirmed() == tap.keepalives[-1].wal_end)
        assert tap.rows == []


def test_an_idle_stream_that_answers_keepalives_stays_open(source: Source) -> None:
    with source.open(source.database.dsn + "?options=-c%20wal_sender_timeout%3D400ms") as stream:
        requests = 0
        deadline = time.monotonic() + 1.2
        while (remaining := deadline - time.monotonic()) > 0:
            select.select([stream], [], [], min(remaining, 0.05))
            batch = stream.read(100)
            if batch is not None and batch.keepalive is not None and batch.keepalive.reply_requested:
                requests += 1
                stream.send_status(flushed=batch.keepalive.wal_end)

        assert requests >= 3
        assert stream.silent_for() < 1


def test_the_server_closes_a_stream_that_does_not_answer(source: Source) -> None:
    with source.open(source.database.dsn + "?options=-c%20wal_sender_timeout%3D200ms") as stream:
        error = failure_of(lambda: stream.read(100))

    assert error.sqlstate is None
    assert "the replication connection is lost" in str(error)


def test_the_last_status_is_not_lost_in_closing(source: Source, fault_proxy: Callable[[str, int], FaultProxy]) -> None:
    proxy = fault_proxy(*address_of(source.database.dsn))
    stream = source.open(proxy.through(source.database.dsn))
    tap = Tap(stream, ["body"])
    source.run("INSERT INTO note (body) VALUES ('read and confirmed')")
    tap.until(lambda: tap.commits)
    source.run("INSERT INTO note (body) SELECT repeat('x', 1000) FROM generate_series(1, 2000)")
    wait_for(lambda: select.select([stream], [], [], 1)[0])  # closing with unread input resets the socket,
    proxy.latency(0.1, "to_server")  # and the reset overtakes data that is still on its way

    stream.send_status(flushed=tap.commits[0].end_lsn)
    stream.close()

    wait_for(lambda: source.walsender() is None)
    assert source.confirmed() == tap.commits[0].end_lsn
    with source.open() as again:
        tap = Tap(again, ["body"])
        tap.until(lambda: tap.commits)
    assert len(tap.rows) == 2000


def test_sending_a_status_neither_blocks_nor_buffers_while_the_socket_is_full(
    source: Source, fault_proxy: Callable[[str, int], FaultProxy]
) -> None:
    proxy = fault_proxy(*address_of(source.database.dsn))
    with source.open(proxy.through(source.database.dsn)) as stream:
        tap = Tap(stream, ["body"])
        source.run("INSERT INTO note (body) VALUES ('x')")
        tap.until(lambda: tap.commits)
        start = source.confirmed()
        proxy.blackhole("to_server")
        taken_before = proxy.bytes_forwarded("to_server")
        sent = 0

        def send_many() -> bool:
            nonlocal sent
            sent += 10_000
            for _ in range(10_000):
                stream.send_status(flushed=start)
            return stream.wants_write

        wait_for(send_many, deadline_seconds=60, message="the socket is never full")
        until_full = sent
        while sent < 4 * until_full:
            send_many()
        stream.send_status(flushed=tap.commits[0].end_lsn)  # the newest, which must not be lost
        assert stream.wants_write

        proxy.heal()

        def flush() -> bool:
            if select.select([], [stream], [], 0.1)[1]:
                stream.flush()
            return not stream.wants_write

        wait_for(flush, deadline_seconds=60)
        wait_for(lambda: source.confirmed() == tap.commits[0].end_lsn, deadline_seconds=60)
        # A status has 39 bytes, under TLS some 60; the buffers of the kernel may have grown meanwhile.
        assert proxy.bytes_forwarded("to_server") - taken_before < 80 * until_full + 6_000_000


# -- errors and the end of a stream ------------------------------------------------------------------------------------


def test_a_missing_slot_is_named(source: Source) -> None:
    with ReplicationStream.open(source.database.dsn) as stream:
        with pytest.raises(ReplicationError, match='replication slot "nowhere" does not exist') as caught:
            stream.start("nowhere", source.publication)
        assert caught.value.sqlstate == UNDEFINED_OBJECT

        stream.start(source.slot, source.publication)  # the connection is still usable


@pytest.mark.parametrize("name", ["Two words", "semi;colon", "it's", 'a"b', 'a" LOGICAL 0/0; DROP_REPLICATION_SLOT "b'])
def test_an_impossible_slot_name_is_refused(source: Source, name: str) -> None:
    # The replication grammar has no escape for a double quote: a quoted name with one is a syntax error.
    with ReplicationStream.open(source.database.dsn) as stream:
        with pytest.raises(ReplicationError) as caught:
            stream.start(name, source.publication)

        assert caught.value.sqlstate == (SYNTAX_ERROR if '"' in name else UNDEFINED_OBJECT)


def test_a_slot_in_use_is_an_error_that_says_so(source: Source) -> None:
    with (
        source.open(),
        ReplicationStream.open(source.database.dsn) as second,
        pytest.raises(ReplicationError, match="is active for PID") as caught,
    ):
        second.start(source.slot, source.publication)

    assert caught.value.sqlstate == OBJECT_IN_USE


def test_the_error_of_an_invalidated_slot_holds_the_cause(private_postgres: Callable[..., Postgres]) -> None:
    server = private_postgres(settings={"max_slot_wal_keep_size": "1MB", "min_wal_size": "32MB"})
    database = Database("postgres", server.dsn())
    with database.connect() as connection:
        source = make_source(database, connection)

        def is_lost() -> bool:
            source.run("INSERT INTO note (body) SELECT repeat('x', 1000) FROM generate_series(1, 1000)")
            source.run("SELECT pg_switch_wal()")
            source.run("CHECKPOINT")
            return source.run("SELECT wal_status FROM pg_replication_slots") == [("lost",)]

        wait_for(is_lost, deadline_seconds=60)
        with pytest.raises(ReplicationError, match=r"slot .* \(This .*slot has been invalidated .*\)") as caught:
            source.open()

    assert caught.value.sqlstate == OBJECT_NOT_IN_PREREQUISITE_STATE


def test_a_slot_is_free_as_soon_as_its_stream_is_closed(source: Source) -> None:
    source.open().close()

    def take_over() -> bool:
        try:
            source.open().close()
        except ReplicationError as error:
            if error.sqlstate != OBJECT_IN_USE:
                raise
            return False
        return True

    wait_for(take_over)


def test_a_missing_publication_is_an_error_on_every_server(source: Source) -> None:
    with ReplicationStream.open(source.database.dsn) as stream:
        stream.start(source.slot, "nowhere")
        source.run("INSERT INTO note (body) VALUES ('x')")
        tap = Tap(stream, [])
        ((end,),) = source.run("SELECT pg_current_wal_insert_lsn()")

        error = tap.fails()

    assert 'publication "nowhere"' in str(error)
    assert error.sqlstate == UNDEFINED_OBJECT
    assert all(keepalive.wal_end < Lsn.parse(end) for keepalive in tap.keepalives)  # nothing confirmed past the row


def test_a_publication_dropped_while_streaming_is_an_error(source: Source) -> None:
    with source.open() as stream:
        tap = Tap(stream, ["body"])
        source.run("INSERT INTO note (body) VALUES ('x')")
        tap.until(lambda: tap.rows)
        source.run("DROP PUBLICATION notes")
        source.run("INSERT INTO note (body) VALUES ('y')")

        assert tap.fails().sqlstate == UNDEFINED_OBJECT

    assert bodies(tap) == ["x"]


def test_the_error_of_a_terminated_walsender_holds_the_cause(source: Source) -> None:
    stream = source.open()
    tap = Tap(stream, [])
    tap.until(lambda: tap.keepalives)
    source.run("SELECT pg_terminate_backend(%s)", source.walsender())

    error = tap.fails()

    assert error.sqlstate == ADMIN_SHUTDOWN
    assert "terminating connection due to administrator command" in str(error)
    stream.close()


def test_the_cause_is_reported_although_sending_noticed_the_end(source: Source) -> None:
    stream = source.open()
    tap = Tap(stream, [])
    tap.until(lambda: tap.keepalives)
    source.run("SELECT pg_terminate_backend(%s)", source.walsender())

    def send() -> None:
        stream.send_status(flushed=Lsn(0))
        stream.fileno()

    assert failure_of(send).sqlstate == ADMIN_SHUTDOWN
    stream.close()


def test_a_server_that_shuts_down_ends_the_stream(private_postgres: Callable[..., Postgres]) -> None:
    server = private_postgres()
    database = Database("postgres", server.dsn())
    with database.connect() as connection:
        source = make_source(database, connection)
    stream = source.open()
    tap = Tap(stream, [])
    stopping = threading.Thread(target=server.stop)
    stopping.start()

    error = tap.fails()

    stopping.join()
    assert error.sqlstate in (None, ADMIN_SHUTDOWN)
    stream.close()


def test_a_server_that_dies_is_a_lost_connection(private_postgres: Callable[..., Postgres]) -> None:
    server = private_postgres()
    database = Database("postgres", server.dsn())
    with database.connect() as connection:
        source = make_source(database, connection)
    stream = source.open()
    server.kill()

    error = Tap(stream, []).fails()

    assert error.sqlstate in (None, "57P02")  # the walsender notices that the postmaster is gone, and may report it
    stream.close()
    with pytest.raises(ReplicationError, match="cannot open a replication connection"):
        ReplicationStream.open(database.dsn)


def test_a_cut_connection_is_a_lost_connection(source: Source, fault_proxy: Callable[[str, int], FaultProxy]) -> None:
    proxy = fault_proxy(*address_of(source.database.dsn))
    stream = source.open(proxy.through(source.database.dsn))
    proxy.cut()

    error = Tap(stream, []).fails()

    assert error.sqlstate is None
    assert "the replication connection is lost" in str(error)
    with pytest.raises(ReplicationError):
        stream.send_status(flushed=Lsn(1))
    with pytest.raises(ReplicationError):
        stream.fileno()
    stream.close()


def test_a_message_torn_in_the_middle_is_a_lost_connection(
    source: Source, fault_proxy: Callable[[str, int], FaultProxy]
) -> None:
    proxy = fault_proxy(*address_of(source.database.dsn))
    with source.open(proxy.through(source.database.dsn)) as stream:
        tap = Tap(stream, ["body"])
        tap.until(lambda: tap.keepalives)
        proxy.tear_after(50_000, "to_client")
        source.run("INSERT INTO note (body) VALUES (repeat('x', 100000))")

        error = tap.fails()

    assert error.sqlstate is None
    assert tap.rows == []


def test_silence_is_measured_and_does_not_block(source: Source, fault_proxy: Callable[[str, int], FaultProxy]) -> None:
    proxy = fault_proxy(*address_of(source.database.dsn))
    with source.open(proxy.through(source.database.dsn)) as stream:
        tap = Tap(stream, ["body"])
        tap.until(lambda: tap.keepalives)
        proxy.blackhole()
        tap.read()
        stream.send_status(flushed=Lsn(0), reply=True)

        tap.until(lambda: stream.silent_for() > 0.3)

        proxy.heal()
        tap.until(lambda: stream.silent_for() < 0.3)


def test_closing_does_not_wait_for_a_silent_server(
    source: Source, fault_proxy: Callable[[str, int], FaultProxy]
) -> None:
    proxy = fault_proxy(*address_of(source.database.dsn))
    stream = source.open(proxy.through(source.database.dsn))
    tap = Tap(stream, [])
    tap.until(lambda: tap.keepalives)
    proxy.blackhole()
    begun = time.monotonic()

    stream.close(timeout_seconds=0.2)

    assert time.monotonic() - begun < 2
    proxy.cut()


def test_closing_does_not_wait_until_the_server_has_sent_everything(source: Source) -> None:
    source.run("INSERT INTO note (body) SELECT repeat('x', 2000) FROM generate_series(1, 50000)")
    stream = source.open()
    tap = Tap(stream, ["id"])
    tap.until(lambda: tap.rows)
    begun = time.monotonic()

    stream.close(timeout_seconds=0.1)

    assert time.monotonic() - begun < 1


def test_closing_twice_is_allowed(source: Source) -> None:
    stream = source.open()
    stream.close()
    stream.close()

    with pytest.raises(ReplicationError):
        stream.read(1)


# -- connecting --------------------------------------------------------------------------------------------------------


def test_a_server_that_does_not_start_to_stream_times_out(
    source: Source, fault_proxy: Callable[[str, int], FaultProxy]
) -> None:
    proxy = fault_proxy(*address_of(source.database.dsn))
    with ReplicationStream.open(proxy.through(source.database.dsn)) as stream:
        proxy.blackhole()
        with pytest.raises(ReplicationError, match="did not start to stream in time"):
            stream.start(source.slot, source.publication, timeout_seconds=0.2)


def test_a_name_with_nul_is_refused(source: Source) -> None:
    with ReplicationStream.open(source.database.dsn) as stream, pytest.raises(ValueError, match="not a name"):
        stream.start("slot\0", source.publication)


def test_the_application_name_is_ours_unless_given(source: Source) -> None:
    def names() -> set[str]:
        rows = source.run(
            "SELECT application_name FROM pg_stat_activity WHERE datname = current_database()"
            " AND backend_type = 'walsender'"
        )
        return {name for (name,) in rows}

    with ReplicationStream.open(source.database.dsn):
        assert names() == {"outrider-relay"}
    wait_for(lambda: not names())
    with ReplicationStream.open(source.database.dsn + "?application_name=mine"):
        assert names() == {"mine"}


def test_a_role_without_the_replication_privilege_is_refused(source: Source) -> None:
    role = f"plain_{uuid.uuid4().hex[:8]}"
    source.run(f"CREATE ROLE {role} LOGIN PASSWORD 'secret'")
    try:
        with pytest.raises(ReplicationError, match=r"(?i)replication"):
            ReplicationStream.open(psycopg.conninfo.make_conninfo(source.database.dsn, user=role, password="secret"))
    finally:
        source.run(f"DROP ROLE {role}")


@pytest.mark.parametrize("conninfo", ["nonsense", "host=127.0.0.1 port=1 dbname=x", "no_such_option=1"])
def test_an_unusable_address_is_a_replication_error(conninfo: str) -> None:
    with pytest.raises(ReplicationError, match="cannot open a replication connection"):
        ReplicationStream.open(conninfo)


def test_connecting_to_a_server_that_does_not_answer_times_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        begun = time.monotonic()
        with pytest.raises(ReplicationError, match="timeout"):
            ReplicationStream.open(f"host=127.0.0.1 port={mute.getsockname()[1]}", connect_timeout_seconds=2)

    assert time.monotonic() - begun < 8
