"""Event streams: append, load, iterate and replay, on every handle."""

from __future__ import annotations

import asyncio
import json
import threading
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from outrider import Context, Event, EventStreams, Outbox, OutsideTransactionError, SubjectEncryption
from outrider.errors import ConcurrencyError
from outrider.storage.sql_files import script
from tests.fixtures.database import Database
from tests.fixtures.handles import STACKS, Rollback, Stack, every_stack, settled
from tests.fixtures.waiting import wait_for

STREAMS = EventStreams(Outbox("shop", context=None, outside_transaction="raise"))


def events(*types: str) -> list[Event]:
    return [Event(event_type=each, payload={"type": each}) for each in types]


def outbox_rows(database: Database, columns: str) -> list[Any]:
    with database.connect() as connection:
        return connection.execute(f"SELECT {columns} FROM outbox ORDER BY id").fetchall()


@every_stack
def test_appended_events_are_in_the_log_and_in_the_outbox_in_order(stack: Stack, database: Database) -> None:
    async def scenario() -> Any:
        async with stack.transaction(database.dsn) as (handle, _):
            assert await settled(STREAMS.append(handle, "order:42", events("a", "b"), expected_version=0)) == 2
            assert await settled(STREAMS.append(handle, "order:42", events("c"))) == 3
            loaded = await settled(STREAMS.load(handle, "order:42", after=1, limit=1))
            iterated = STREAMS.iterate(handle, "order:42", chunk_size=2)
            every = [e async for e in iterated] if hasattr(iterated, "__aiter__") else list(iterated)
            return loaded, every

    loaded, every = asyncio.run(scenario())
    assert [(e.version, e.event_type, e.data, e.headers) for e in loaded] == [(2, "b", {"type": "b"}, {})]
    assert [e.version for e in every] == [1, 2, 3]
    assert outbox_rows(database, "event_id") == [(e.event_id,) for e in every]
    assert outbox_rows(database, "ordering_key, aggregate_type, aggregate_id, exchange, routing_key") == [
        ("order:42", "order", "42", "shop", each) for each in "abc"
    ]
    assert json.loads(outbox_rows(database, "headers::text")[2][0]) == {
        "stream": "order:42",
        "stream_version": 3,
        "aggregate_type": "order",
        "aggregate_id": "42",
    }


@every_stack
def test_an_append_with_an_outdated_version_raises_and_writes_nothing(stack: Stack, database: Database) -> None:
    async def scenario() -> None:
        async with stack.transaction(database.dsn) as (handle, _):
            await settled(STREAMS.append(handle, "order:42", events("a", "b")))
            with pytest.raises(ConcurrencyError, match="at version 2, not at 1") as raised:
                await settled(STREAMS.append(handle, "order:42", events("c"), expected_version=1))
            assert (raised.value.stream, raised.value.expected, raised.value.actual) == ("order:42", 1, 2)
            await settled(STREAMS.append(handle, "order:42", events("d"), expected_version=2))

    asyncio.run(scenario())
    assert outbox_rows(database, "event_type") == [("a",), ("b",), ("d",)]


@every_stack
def test_an_append_that_is_rolled_back_leaves_nothing(stack: Stack, database: Database) -> None:
    async def scenario() -> None:
        async with stack.transaction(database.dsn) as (handle, savepoint):
            with suppress(Rollback):
                async with savepoint():
                    await settled(STREAMS.append(handle, "order:42", events("a")))
                    raise Rollback
            await settled(STREAMS.append(handle, "order:42", events("b"), expected_version=0))

    asyncio.run(scenario())
    assert outbox_rows(database, "event_type") == [("b",)]


@pytest.mark.parametrize("winner_commits", [True, False])
@pytest.mark.parametrize("expected_version", [0, None])
def test_the_second_of_two_concurrent_appends_waits_for_the_first(
    database: Database, expected_version: int | None, winner_commits: bool
) -> None:
    outcome: list[Any] = []
    with database.connect(autocommit=False) as first, database.connect(autocommit=False) as second:
        STREAMS.append(first, "order:42", events("a"), expected_version=0)

        def append_second() -> None:
            try:
                outcome.append(STREAMS.append(second, "order:42", events("b", "c", "d"), expected_version))
            except ConcurrencyError as error:
                outcome.append((error.expected, error.actual))
            second.commit()

        thread = threading.Thread(target=append_second)
        thread.start()
        with database.connect() as observer:
            wait_for(
                lambda: observer.execute(
                    "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
                ).fetchall()
            )
        first.commit() if winner_commits else first.rollback()
        thread.join()
    if not winner_commits:
        assert outcome == [3]
        assert outbox_rows(database, "event_type") == [("b",), ("c",), ("d",)]
    elif expected_version is None:
        assert outcome == [4]
        assert outbox_rows(database, "event_type") == [("a",), ("b",), ("c",), ("d",)]
    else:
        assert outcome == [(0, 1)]
        assert outbox_rows(database, "event_type") == [("a",)]


def test_many_concurrent_appends_leave_no_gaps_and_keep_the_order(database: Database) -> None:
    def write(worker: int) -> None:
        with database.connect(autocommit=False) as connection:
            for n in range(20):
                STREAMS.append(connection, "s", events(f"{worker}.{n}", f"{worker}.{n}+"))
                connection.commit()

    threads = [threading.Thread(target=write, args=(worker,)) for worker in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with database.connect() as connection:
        loaded = STREAMS.load(connection, "s")
    assert [event.version for event in loaded] == list(range(1, 161))
    assert outbox_rows(database, "event_id") == [(event.event_id,) for event in loaded]


@every_stack
def test_replayed_events_carry_what_they_carried_and_the_id_of_the_replay(stack: Stack, database: Database) -> None:
    later = Event(event_type="b", payload={"type": "b"}, type_version=2)

    async def scenario() -> Any:
        async with stack.transaction(database.dsn) as (handle, _):
            await settled(STREAMS.append(handle, "order:42", [*events("a"), later]))
            await settled(STREAMS.append(handle, "plain", [Event(event_type="a", payload=b"x", headers={"k": "v"})]))
            replayed = await settled(STREAMS.replay(handle, stream="order:42", after=1, replay_id=UUID(int=1)))
            by_type = await settled(STREAMS.replay(handle, event_type="a", exchange="other", routing_key="r"))
            return replayed, by_type

    assert asyncio.run(scenario()) == ((-1, -1) if stack is STACKS["psycopg pipeline"] else (1, 2))
    first, second, third = outbox_rows(
        database, "event_type, exchange, routing_key, ordering_key, aggregate_id, headers::text, event_id"
    )[3:]
    assert first[:5] == ("b", "shop", "b", "order:42", "42")
    assert json.loads(first[5]) == {
        "stream": "order:42",
        "stream_version": 2,
        "aggregate_type": "order",
        "aggregate_id": "42",
        "type_version": 2,
        "replayed": True,
        "replay_id": str(UUID(int=1)),
    }
    assert first[6] == outbox_rows(database, "event_id")[1][0]
    assert second[:5] == ("a", "other", "r", "order:42", "42")
    assert third[:5] == ("a", "other", "r", "plain", None)
    headers = json.loads(third[5])
    assert headers.pop("replay_id") == json.loads(second[5])["replay_id"] != str(UUID(int=1))
    assert headers == {"stream": "plain", "stream_version": 1, "replayed": True, "k": "v"}


def test_a_time_range_is_replayed_in_the_order_of_versions_even_if_the_clock_was_set_back(
    database: Database,
) -> None:
    with database.connect() as connection:
        with connection.transaction():
            STREAMS.append(connection, "s", events("a", "b", "c"))
        connection.execute(
            "UPDATE outbox_event SET created_at = ('2020-01-0' || (4 - version) || ' 00:00+00')::timestamptz"
        )
        connection.execute("DELETE FROM outbox")
        with connection.transaction():
            since = datetime(2020, 1, 2, tzinfo=UTC)
            assert STREAMS.replay(connection, since=since, until=since + timedelta(days=5)) == 2
    assert outbox_rows(database, "event_type") == [("a",), ("b",)]


def test_events_can_be_replayed_by_a_glob_of_their_type(database: Database) -> None:
    with database.connect(autocommit=False) as connection:
        STREAMS.append(connection, "s", events("order_placed", "order.placed", "orders"))
        assert STREAMS.replay(connection, event_type="order?placed") == 2
        assert STREAMS.replay(connection, event_type="order_placed") == 1
        assert STREAMS.replay(connection, event_type="order.*") == 1


def test_the_context_is_in_the_message_and_not_in_the_event_log(database: Database) -> None:
    streams = EventStreams(Outbox(context=Context(sentry=False, opentelemetry=False)))
    with database.connect(autocommit=False) as connection:
        streams.append(connection, "s", [Event(event_type="a", payload="text", headers={"k": "\1", "n": 1})])
        [stored] = streams.load(connection, "s")
    assert stored.headers == {"k": "\1", "n": 1}
    assert stored.data == "text"
    [(headers,)] = outbox_rows(database, "headers::text")
    assert json.loads(headers) == {
        "stream": "s",
        "stream_version": 1,
        "tracking_ids": [str(stored.event_id)],
        "k": "\1",
        "n": 1,
    }


def test_a_producers_role_can_append_read_save_snapshots_encrypt_and_replay(database: Database) -> None:
    roles = {kind: f"{kind}_{database.name}" for kind in ("producer", "consumer", "relay", "scheduler", "observer")}
    with database.connect() as connection:
        connection.execute(script("roles.sql", schema="public", **roles))
        try:
            with connection.transaction():
                connection.execute(f"SET LOCAL ROLE {roles['producer']}")
                STREAMS.append(connection, "s", events("a"))
                with pytest.raises(ConcurrencyError):
                    STREAMS.append(connection, "s", events("b"), expected_version=0)
                assert len(STREAMS.load(connection, "s")) == 1
                assert STREAMS.read(connection) == []
                STREAMS.save_snapshot(connection, "s", 1, {"n": 1})
                STREAMS.save_snapshot(connection, "s", 1, {"n": 2})
                assert STREAMS.load_snapshot(connection, "s").state == {"n": 2}  # type: ignore[union-attr]
                encrypted = EventStreams(Outbox(context=None), codec=SubjectEncryption())
                encrypted.append(connection, "t", [Event(event_type="a", payload="secret", subject="ada")])
                assert encrypted.load(connection, "t")[0].data == "secret"
                assert STREAMS.replay(connection, stream="s") == 1
        finally:
            for role in roles.values():
                connection.execute(f"DROP OWNED BY {role}")
                connection.execute(f"DROP ROLE {role}")


@pytest.mark.parametrize(
    "event",
    [
        Event(event_type="a", payload={}, deliver_after=1),
        Event(event_type="a", payload={}, dedup_key="k"),
        Event(event_type="a", payload={}, aggregate="order:1"),
        Event(event_type="a", payload={}, ordering_key=None),
    ],
)
def test_an_event_that_does_not_fit_a_stream_is_refused(event: Event, database: Database) -> None:
    with database.connect(autocommit=False) as connection, pytest.raises(ValueError, match="an event of a stream"):
        STREAMS.append(connection, "s", [event])


def test_an_append_outside_a_transaction_and_a_replay_of_everything_are_refused(database: Database) -> None:
    with database.connect() as connection:
        with pytest.raises(OutsideTransactionError):
            STREAMS.append(connection, "s", events("a"))
        with pytest.raises(OutsideTransactionError):
            STREAMS.replay(connection, stream="s")
        with pytest.raises(ValueError, match="say what to replay"):
            STREAMS.replay(connection)
        assert STREAMS.load(connection, "s") == []
