"""The log of event streams, read in one order: nothing is missed, nothing comes twice, on every handle."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any

import psycopg
import pytest

from outrider import Event, EventIdError, EventStreams, Outbox, Position
from outrider.embedded.postgres import installations
from outrider.errors import DatabaseError, EpochError
from outrider.operations.event_log import start_epoch
from outrider.storage.sql_files import migrations, script, sql_directory
from outrider.storage.store import Store
from tests.fixtures.database import Database, create_database, drop_database
from tests.fixtures.handles import Stack, every_stack, settled
from tests.integration.test_query_plans import pages
from tests.integration.test_schema import describe

STREAMS = EventStreams(Outbox("shop", context=None, outside_transaction="raise"))


def events(*types: str) -> list[Event]:
    return [Event(event_type=each, payload={"type": each}) for each in types]


def types_of(page: Iterable[Any]) -> list[str]:
    return [event.event_type for event in page]


@every_stack
def test_the_log_is_read_in_pages_by_category_and_by_type(stack: Stack, database: Database) -> None:
    async def scenario() -> Any:
        async with stack.transaction(database.dsn) as (handle, _):
            await settled(STREAMS.append(handle, "order:1", events("placed", "paid")))
            await settled(STREAMS.append(handle, "stock", events("reserved")))
            await settled(STREAMS.append(handle, "order:2", events("placed")))
            assert await settled(STREAMS.read(handle)) == []  # the reader's own transaction has not ended
        async with stack.transaction(database.dsn) as (handle, _):
            first = await settled(STREAMS.read(handle, limit=3))
            second = await settled(STREAMS.read(handle, after=first.next_position, limit=3))
            nothing = await settled(STREAMS.read(handle, after=second.next_position))
            orders = await settled(STREAMS.read(handle, category="order"))
            some = await settled(STREAMS.read(handle, category=["stock", "order", "order", "other"], event_types="p*d"))
            either = await settled(STREAMS.read(handle, event_types=["reserved", "paid"], limit=2))
            iterated = STREAMS.iterate_log(handle, chunk_size=2, category="order")
            chunks = [e async for e in iterated] if hasattr(iterated, "__aiter__") else list(iterated)
            return first, second, nothing, orders, some, either, chunks, await settled(STREAMS.end(handle))

    first, second, nothing, orders, some, either, chunks, end = asyncio.run(scenario())
    assert [(e.stream, e.version, e.event_type) for e in first + second] == [
        ("order:1", 1, "placed"),
        ("order:1", 2, "paid"),
        ("stock", 1, "reserved"),
        ("order:2", 1, "placed"),
    ]
    positions = [event.position for event in first + second]
    assert positions == sorted(set(positions))
    assert first.next_position == positions[2]
    assert nothing == []
    assert positions[-1] < second.next_position <= nothing.next_position <= end
    assert types_of(orders) == types_of(chunks) == types_of(some) == ["placed", "paid", "placed"]
    assert [event.category for event in either] == ["order", "stock"]
    assert (first[0].data, first[0].type_version) == ({"type": "placed"}, 1)


def test_a_position_is_stored_as_text() -> None:
    position = Position(3, 41, 7)
    assert Position.parse(str(position)) == position
    assert Position(1, 900, 1) < Position(1, 1000, 1) < Position(2, 1, 1)
    for text in ("", "1-2", "1-2-3-4", "1-2-x", "1--2", "1-2-" + "9" * 20):
        with pytest.raises(ValueError, match="not a position"):
            Position.parse(text)


def test_an_event_that_commits_later_than_a_newer_one_is_not_missed(database: Database) -> None:
    with database.connect() as reader, database.connect(autocommit=False) as slow:
        STREAMS.append(slow, "a", events("slow"))
        append(database, "b", "quick")
        before = STREAMS.read(reader)
        assert before == []
        slow.commit()
        assert types_of(STREAMS.read(reader, after=before.next_position)) == ["slow", "quick"]


def test_an_event_that_was_rolled_back_leaves_no_gap_in_what_is_read(database: Database) -> None:
    with database.connect() as reader, database.connect(autocommit=False) as other:
        append(database, "a", "first")
        STREAMS.append(other, "b", events("never"))
        append(database, "a", "second")
        page = STREAMS.read(reader)
        other.rollback()
        assert types_of(page) == ["first"]
        assert types_of(STREAMS.read(reader, after=page.next_position)) == ["second"]


def test_a_stream_is_read_in_the_order_of_its_versions_even_if_an_older_transaction_appends_last(
    database: Database,
) -> None:
    with database.connect() as reader, database.connect(autocommit=False) as early:
        early.execute("SELECT pg_current_xact_id()")  # its first write was before the other transaction began
        append(database, "a", "one")
        STREAMS.append(early, "a", events("two", "three"))
        STREAMS.append(early, "b", events("four"))
        early.commit()
        append(database, "a", "five")
        page = STREAMS.read(reader)
    assert types_of(e for e in page if e.stream == "a") == ["one", "two", "three", "five"]
    assert sorted(types_of(page)) == ["five", "four", "one", "three", "two"]


def test_a_reader_that_asks_for_a_rare_type_moves_on_past_the_others(database: Database) -> None:
    append(database, "a", "x", "y", "x")
    with database.connect() as reader:
        page = STREAMS.read(reader, event_types="y", limit=10)
        last = STREAMS.read(reader)[-1]
    assert types_of(page) == ["y"]
    assert page.next_position > last.position


FILL = (
    "INSERT INTO outbox_event (stream, version, event_id, event_type, payload) "
    "SELECT 'a:' || n, 1, gen_random_uuid(), 'e', '{}' FROM generate_series(%s::int, %s::int) AS n"
)


@pytest.mark.parametrize("query", ["read_events", "read_category_events"])
def test_a_page_costs_the_same_in_a_long_log_and_before_many_events_that_cannot_be_read_yet(
    database: Database, query: str
) -> None:
    parameters: dict[str, Any] = {
        "after_epoch": "0", "after_transaction": "0", "after_number": "0", "event_types": None, "limit": "100",
        "categories": ["a"],
    }  # fmt: skip
    with database.connect() as connection, database.connect(autocommit=False) as slow:
        connection.execute(FILL, [1, 1000])
        connection.execute("VACUUM ANALYZE outbox_event")
        few = pages(connection, query, parameters)
        slow.execute("SELECT pg_current_xact_id()")
        connection.execute(FILL, [1001, 30_000])
        connection.execute("VACUUM ANALYZE outbox_event")
        assert pages(connection, query, parameters) < few * 2
        parameters["after_epoch"], parameters["after_transaction"], _ = map(str, STREAMS.end(connection))
        assert pages(connection, query, parameters) < 20  # 29,000 events are behind the running transaction


# -- an event is in the log once ---------------------------------------------------------------------------------------


@every_stack
def test_an_append_can_be_repeated_and_writes_nothing_the_second_time(stack: Stack, database: Database) -> None:
    def paid() -> list[Event]:
        return [
            Event(event_type="paid", payload={"n": n}, event_id=f"00000000-0000-4000-8000-00000000000{n}")
            for n in range(2)
        ]

    async def scenario() -> None:
        async with stack.transaction(database.dsn) as (handle, _):
            assert await settled(STREAMS.append(handle, "order:1", events("placed"))) == 1
            assert await settled(STREAMS.append(handle, "order:1", paid(), expected_version=1)) == 3
            assert await settled(STREAMS.append(handle, "order:1", events("sent"))) == 4
            assert await settled(STREAMS.append(handle, "order:1", paid(), expected_version=1)) == 3
            assert await settled(STREAMS.append(handle, "order:1", paid()[:1])) == 2
            other, order = paid()[0], paid()[::-1]
            other.payload = {"n": "another"}
            for stream, wrong in (("order:1", [other]), ("order:2", paid()), ("order:1", order)):
                with pytest.raises(EventIdError, match="these ids are in the log"):
                    await settled(STREAMS.append(handle, stream, wrong))
            with pytest.raises(EventIdError):  # only some of them are in the log
                await settled(STREAMS.append(handle, "order:1", [paid()[1], Event(event_type="b", payload=1)]))

    asyncio.run(scenario())
    with database.connect() as connection:
        assert types_of(STREAMS.load(connection, "order:1")) == ["placed", "paid", "paid", "sent"]
        assert connection.execute("SELECT count(*) FROM outbox").fetchone() == (4,)


def test_two_concurrent_appends_of_one_event_write_it_once(database: Database) -> None:
    event = Event(event_type="paid", payload={}, event_id="00000000-0000-4000-8000-000000000001")
    versions: list[int] = []

    def write() -> None:
        with database.connect(autocommit=False) as connection:
            versions.append(STREAMS.append(connection, "order:1", [event]))

    threads = [threading.Thread(target=write) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert versions == [1] * 6
    with database.connect() as connection:
        assert connection.execute("SELECT count(*) FROM outbox").fetchone() == (1,)


@every_stack
def test_a_stream_is_loaded_forwards_and_backwards_between_two_versions(stack: Stack, database: Database) -> None:
    async def scenario() -> None:
        async with stack.transaction(database.dsn) as (handle, _):
            assert await settled(STREAMS.last_version(handle, "s")) == 0
            assert not await settled(STREAMS.exists(handle, "s"))
            await settled(STREAMS.append(handle, "s", events("a", "b", "c", "d")))
            assert await settled(STREAMS.last_version(handle, "s")) == 4
            assert await settled(STREAMS.exists(handle, "s"))
            assert types_of(await settled(STREAMS.load(handle, "s", 1, before=4))) == ["b", "c"]
            backwards = await settled(STREAMS.load(handle, "s", limit=2, before=4, backwards=True))
            assert types_of(backwards) == ["c", "b"]

    asyncio.run(scenario())


def test_an_event_has_its_own_schema_version(database: Database) -> None:
    with database.connect(autocommit=False) as connection:
        STREAMS.append(connection, "s", [Event(event_type="a", payload={}, type_version=3), *events("b")])
        assert [event.type_version for event in STREAMS.load(connection, "s")] == [3, 1]
        headers = connection.execute("SELECT headers->>'type_version' FROM outbox ORDER BY id").fetchall()
        assert headers == [("3",), (None,)]
        for wrong in (0, 40_000):
            with pytest.raises(ValueError, match="type_version must lie"):
                STREAMS.append(connection, "s", [Event(event_type="a", payload={}, type_version=wrong)])


# -- the property ------------------------------------------------------------------------------------------------------


SEED = int(os.environ.get("OUTRIDER_TEST_SEED", "0")) or random.SystemRandom().randrange(10**6)


class Writers:
    """Threads that append with random durations, rollbacks and killed sessions, until `stop`."""

    def __init__(self, database: Database, count: int) -> None:
        self.database = database
        self.stopping = threading.Event()
        self.errors: list[BaseException] = []
        self.threads = [threading.Thread(target=self._write, args=(number,)) for number in range(count)]

    def __enter__(self) -> Writers:
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stopping.set()
        for thread in self.threads:
            thread.join()

    def _write(self, number: int) -> None:
        chance = random.Random(SEED * 100 + number)
        try:
            while not self.stopping.is_set():
                with self.database.connect(autocommit=False) as connection:
                    for _ in range(chance.randrange(1, 8)):
                        if not self._transaction(connection, chance):
                            break
        except BaseException as error:  # shown by the test
            self.errors.append(error)

    def _transaction(self, connection: psycopg.Connection[Any], chance: random.Random) -> bool:
        """False: the session was killed."""
        if chance.random() < 0.3:
            connection.execute("SELECT pg_current_xact_id()")  # its id is older than its first event
            self.stopping.wait(chance.random() * 0.02)
        # In the order of their names: two transactions must not wait for each other.
        for stream in sorted(chance.sample(["a:1", "a:2", "b:1", "c"], chance.randrange(1, 4))):
            STREAMS.append(connection, stream, events(*("e" for _ in range(chance.randrange(1, 4)))))
            if chance.random() < 0.3:
                self.stopping.wait(chance.random() * 0.02)
        fate = chance.random()
        if fate < 0.1:
            with self.database.connect() as killer:
                killer.execute("SELECT pg_terminate_backend(%s)", [connection.info.backend_pid])
            try:
                connection.commit()
            except psycopg.OperationalError:
                return False
        if fate < 0.25:
            connection.rollback()
        else:
            connection.commit()
        return True


def read_at_random(database: Database, stop: threading.Event, seen: list[Any], seed: int, **options: Any) -> None:
    chance = random.Random(seed)
    position = None
    with database.connect() as connection:
        while True:
            last_round = stop.is_set()
            page = STREAMS.read(connection, after=position, limit=chance.randrange(1, 50), **options)
            seen.extend(page)
            position = Position.parse(str(page.next_position))
            if last_round and not page:
                return
            if not page:
                time.sleep(chance.random() * 0.005)  # how often a reader polls is part of the property


def test_readers_that_poll_at_random_see_every_committed_event_once_in_one_order(database: Database) -> None:
    stop = threading.Event()
    options: list[dict[str, Any]] = [{}, {}, {"category": "a"}, {"category": ["c", "b", "a"]}, {"event_types": "e"}]
    seen: list[list[Any]] = [[] for _ in options]
    readers = [
        threading.Thread(target=read_at_random, args=(database, stop, seen[n], SEED + n), kwargs=each)
        for n, each in enumerate(options)
    ]
    for reader in readers:
        reader.start()
    try:
        with Writers(database, 5) as writers:
            for _ in range(3):
                writers.stopping.wait(1)
                with database.connect() as connection:
                    start_epoch(Store(connection, "public"))
            writers.stopping.wait(1)
    finally:
        stop.set()
        for reader in readers:
            reader.join()
    assert not writers.errors, (SEED, writers.errors)
    with database.connect() as connection:
        logged = dict(connection.execute("SELECT event_id, epoch FROM outbox_event").fetchall())
    assert len(set(logged.values())) > 2
    everything = [event.event_id for event in seen[0]]
    assert len(everything) > 100
    assert sorted(everything) == sorted(logged), SEED
    assert [event.event_id for event in seen[1]] == everything, SEED
    assert seen[3] == seen[4] == seen[0], SEED
    assert seen[2] == [event for event in seen[0] if event.category == "a"], SEED
    versions: dict[str, int] = {}
    for event in seen[0]:
        assert event.version == versions.get(event.stream, 0) + 1, (SEED, event)
        versions[event.stream] = event.version


def append(database: Database, stream: str, *types: str) -> None:
    with database.connect(autocommit=False) as connection:
        STREAMS.append(connection, stream, events(*types))


# -- epochs ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def restored(database: Database) -> Database:
    """A log as after a restore from a server with larger transaction ids: two events, and one appended since."""
    append(database, "a", "old 1", "old 2")
    with database.connect() as connection:
        connection.execute("UPDATE outbox_event SET transaction_id = transaction_id + 1000000")
        connection.execute("UPDATE outbox_epoch SET system_identifier = '1'")
    append(database, "a", "new 3")
    return database


def test_a_restored_log_is_not_read_before_it_has_a_new_epoch_and_in_order_after_that(restored: Database) -> None:
    with restored.connect() as connection:
        with pytest.raises(EpochError, match="outrider events new-epoch"):
            STREAMS.read(connection)
        assert start_epoch(Store(connection, "public")) == (2, 1)
        page = STREAMS.read(connection)
        append(restored, "a", "new 4")
        page += STREAMS.read(connection, after=page.next_position)
    assert types_of(page) == ["old 1", "old 2", "new 3", "new 4"]
    assert [event.position.epoch for event in page] == [1, 1, 2, 2]


def test_a_new_epoch_waits_for_transactions_that_are_appending_and_gives_up(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outrider.operations.event_log.LOCK_TIMEOUT_SECONDS", 0.2)
    with database.connect() as connection, database.connect(autocommit=False) as other:
        STREAMS.append(other, "a", events("x"))
        with pytest.raises(DatabaseError, match=r"did not end within 0\.2 s: nothing changed"):
            start_epoch(Store(connection, "public"))
        other.commit()
        assert start_epoch(Store(connection, "public")) == (2, 0)


# -- the migration -----------------------------------------------------------------------------------------------------


@pytest.fixture
def older(database: Database) -> Iterator[Database]:
    """A log from before migration 4, with a clock that was set back between two appends."""
    old = create_database(database.server_url)
    with old.connect() as connection:
        for migration in migrations():
            if migration.version < 4:
                connection.execute(script(migration.path, schema="public"))
        connection.execute(
            "INSERT INTO outbox_event (stream, version, event_id, event_type, payload, created_at) VALUES "
            "('a', 1, gen_random_uuid(), 'one', '{}', '2020-01-05'), "
            "('a', 2, gen_random_uuid(), 'two', '{}', '2020-01-01'), "
            "('b', 1, gen_random_uuid(), 'between', '{}', '2020-01-03')"
        )
    yield old
    drop_database(old)


@pytest.mark.parametrize("online", [False, True])
def test_events_from_before_the_migration_are_read_first_in_the_order_of_their_time(
    older: Database, online: bool
) -> None:
    if online:
        psql = next(iter(installations().values())) / "psql"
        path = sql_directory() / "setup/event_order_online.sql"
        command = [str(psql), "-X", "-q", "-v", "ON_ERROR_STOP=1", "-v", "schema=public", "-f", str(path), older.dsn]
        subprocess.run(command, check=True, capture_output=True, text=True)
    else:
        with older.connect(autocommit=False) as connection:
            connection.execute(script("migrations/0004_event_order.sql", schema="public"))
    append(older, "a", "three")
    with older.connect() as connection:
        page = STREAMS.read(connection)
        made = describe(connection, "public")
        connection.execute(script("schema.sql", schema="fresh"))
        expected = describe(connection, "fresh")
    assert types_of(page) == ["between", "one", "two", "three"]
    assert [event.position.epoch for event in page] == [0, 0, 0, 1]
    assert {part: made[part] == expected[part] for part in ("columns", "constraints", "indexes")} == dict.fromkeys(
        ("columns", "constraints", "indexes"), True
    )


def test_an_event_id_that_is_in_the_log_twice_stops_the_migration_and_is_named(older: Database) -> None:
    with older.connect() as connection:
        connection.execute(
            "UPDATE outbox_event SET event_id = '00000000-0000-4000-8000-000000000001' WHERE version = 1"
        )
        with pytest.raises(psycopg.errors.UniqueViolation, match="00000000-0000-4000-8000-000000000001"):
            connection.execute(script("migrations/0004_event_order.sql", schema="public"))
