"""Every handle: messages are committed and rolled back with the transaction and its savepoints."""

from __future__ import annotations

import asyncio
import warnings
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from outrider import Event, Outbox, OutsideTransactionError, OutsideTransactionWarning
from tests.fixtures.database import Database
from tests.fixtures.handles import STACKS, Rollback, Stack, every_stack, settled


def rows(database: Database, columns: str = "event_type") -> list[Any]:
    with database.connect() as connection:
        found = connection.execute(f"SELECT {columns} FROM outbox ORDER BY id").fetchall()
    return [row[0] if len(row) == 1 else row for row in found]


@every_stack
def test_a_committed_message_is_in_the_outbox(stack: Stack, database: Database) -> None:
    async def scenario() -> Any:
        async with stack.transaction(database.dsn) as (handle, _):
            return await settled(
                Outbox("shop", context=None, outside_transaction="raise").publish(
                    handle,
                    "order.placed",
                    {"note": "100 % 'grün' \\ \u0001"},
                    aggregate=("order", 42),
                    headers={"tenant": "a\u0001b", "n": 1},
                    expires=60,
                    dedup_key="k",
                )
            )

    receipt = asyncio.run(scenario())
    assert receipt.new is not False
    [row] = rows(
        database,
        "event_id, event_type, aggregate_type, aggregate_id, ordering_key, exchange, routing_key, payload, "
        "content_type, headers::text, dedup_key, owner, next_attempt_at > clock_timestamp() + interval '20 s', "
        "expires_at BETWEEN clock_timestamp() + interval '40 s' AND clock_timestamp() + interval '60 s'",
    )
    assert row == (
        receipt.event_id,
        "order.placed",
        "order",
        "42",
        "order:42",
        "shop",
        "order.placed",
        b'{"note":"100 % \'gr\xc3\xbcn\' \\\\ \\u0001"}',
        "application/json",
        '{"aggregate_type":"order","aggregate_id":"42","tenant":"a\\u0001b","n":1}',
        "k",
        "relay",
        True,
        True,
    )


@every_stack
def test_a_rolled_back_message_is_not_in_the_outbox(stack: Stack, database: Database) -> None:
    async def scenario() -> None:
        async with stack.transaction(database.dsn) as (handle, _):
            await settled(Outbox().publish(handle, "one", {}))
            await settled(Outbox().publish_many(handle, [Event(event_type="two", payload={})]))
            raise Rollback

    with pytest.raises(Rollback):
        asyncio.run(scenario())
    assert rows(database) == []


@every_stack
def test_messages_are_rolled_back_with_their_savepoint(stack: Stack, database: Database) -> None:
    async def scenario() -> None:
        async with stack.transaction(database.dsn) as (handle, savepoint):
            await settled(Outbox().publish(handle, "before", {}))
            with suppress(Rollback):
                async with savepoint():
                    await settled(Outbox().publish(handle, "undone", {}))
                    await settled(Outbox().publish_many(handle, [{"event_type": "undone too", "payload": {}}]))
                    raise Rollback
            async with savepoint():
                await settled(Outbox().publish(handle, "kept", {}))
            await settled(Outbox().publish(handle, "after", {}))

    asyncio.run(scenario())
    assert rows(database) == ["before", "kept", "after"]


@every_stack
def test_many_messages_are_written_in_order_and_delayed_ones_belong_to_the_scheduler(
    stack: Stack, database: Database
) -> None:
    messages = [
        Event(event_type=f"type.{n}", payload=bytes([n]) if n % 2 else {"n": n}, aggregate=("order", n % 3))
        for n in range(50)
    ]
    messages.append(Event(event_type="later", payload="text", deliver_after=3600, expires=7200))

    async def scenario() -> Any:
        async with stack.transaction(database.dsn) as (handle, _):
            return await settled(Outbox("shop").publish_many(handle, messages))

    receipt = asyncio.run(scenario())
    assert receipt.event_ids == rows(database, "event_id")
    assert rows(database) == [message.event_type for message in messages]
    assert rows(database, "payload")[:2] == [b'{"n":0}', b"\x01"]
    assert rows(database, "content_encoding")[:2] == ["utf-8", "binary"]
    assert rows(database, "owner, next_attempt_at > clock_timestamp() + interval '59 minutes', expires_at IS NULL")[
        -2:
    ] == [("relay", False, True), ("scheduler", True, False)]


@every_stack
def test_at_most_one_message_per_dedup_key_is_pending(stack: Stack, database: Database) -> None:
    async def scenario() -> list[Any]:
        async with stack.transaction(database.dsn) as (handle, _):
            outbox = Outbox()
            first = await settled(outbox.publish(handle, "one", {}, dedup_key="k"))
            second = await settled(outbox.publish(handle, "two", {}, dedup_key="k"))
            many = [Event(event_type="three", payload={}, dedup_key=key) for key in ("k", "l", "l")]
            return [first.new, second.new, (await settled(outbox.publish_many(handle, many))).written]

    expected = [None, None, None] if stack is STACKS["psycopg pipeline"] else [True, False, 1]
    assert asyncio.run(scenario()) == expected
    assert rows(database) == ["one", "three"]


@every_stack
def test_outside_a_transaction_a_publish_warns_or_is_refused_or_is_allowed(stack: Stack, database: Database) -> None:
    async def scenario() -> None:
        async with stack.autocommit(database.dsn) as handle:
            with pytest.raises(OutsideTransactionError):
                await settled(Outbox(outside_transaction="raise").publish(handle, "refused", {}))
            with pytest.warns(OutsideTransactionWarning) as caught:
                await settled(Outbox().publish(handle, "warned", {}))
            assert "/tests/" in caught[0].filename  # the application's line, and none of the producer's
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                await settled(Outbox(outside_transaction="allow").publish(handle, "allowed", {}))

    asyncio.run(scenario())
    assert rows(database) == ["warned", "allowed"]


@every_stack
def test_an_outbox_can_have_a_default_expiration(stack: Stack, database: Database) -> None:
    async def scenario() -> None:
        async with stack.transaction(database.dsn) as (handle, _):
            outbox = Outbox(expires="1h")
            await settled(outbox.publish(handle, "default", {}))
            await settled(outbox.publish(handle, "own", {}, expires="2h"))
            events = [Event(event_type="default", payload={}), Event(event_type="own", payload={}, expires=7200)]
            await settled(outbox.publish_many(handle, events))
            with pytest.raises(ValueError, match="expires must be later"):
                await settled(outbox.publish(handle, "too late", {}, deliver_after="90m"))

    asyncio.run(scenario())
    lifetimes = rows(database, "event_type, round(extract(epoch FROM expires_at - created_at) / 3600)::int")
    assert sorted(lifetimes) == [("default", 1), ("default", 1), ("own", 2), ("own", 2)]


def test_the_default_expiration_of_an_outbox_is_a_duration() -> None:
    for wrong in (datetime.now(UTC), -1, "soon"):
        with pytest.raises((TypeError, ValueError), match="expires"):
            Outbox(expires=wrong)  # type: ignore[arg-type]


def test_a_role_that_may_only_insert_can_publish(database: Database) -> None:
    role = f"only_insert_{database.name}"
    with database.connect() as connection:
        connection.execute(f"CREATE ROLE {role}")
        connection.execute(f"GRANT INSERT ON outbox TO {role}")
        try:
            with connection.transaction():
                connection.execute(f"SET LOCAL ROLE {role}")
                Outbox().publish(connection, "one", {}, dedup_key="k")
                assert not Outbox().publish(connection, "one", {}, dedup_key="k").new
                Outbox().publish(connection, "later", {}, deliver_after=1)
                Outbox().publish_many(
                    connection, [Event(event_type="many", payload={}, deliver_after=d) for d in (None, 1)]
                )
        finally:
            connection.execute(f"DROP OWNED BY {role}")
            connection.execute(f"DROP ROLE {role}")
    assert rows(database) == ["one", "later", "many", "many"]


def test_a_message_that_cannot_be_encoded_leaves_the_transaction_usable(database: Database) -> None:
    with database.connect(autocommit=False) as connection:
        with pytest.raises(TypeError):
            Outbox().publish_many(
                connection, [{"event_type": "a", "payload": 1}, {"event_type": "b", "payload": object()}]
            )
        Outbox().publish(connection, "c", {})
    assert rows(database) == ["c"]


def test_the_hand_over_time_is_the_databases(database: Database) -> None:
    with database.connect() as connection:
        connection.execute("ALTER TABLE outbox ALTER COLUMN next_attempt_at SET DEFAULT '2040-01-01 00:00:00+00'")
        with connection.transaction():
            Outbox().publish(connection, "a", {})
            Outbox().publish_many(connection, [Event(event_type="b", payload={})])
    assert rows(database, "next_attempt_at = '2040-01-01 00:00:00+00'") == [True, True]


def test_a_given_event_id_and_another_schema_are_respected(database: Database) -> None:
    from outrider.storage.sql_files import script

    event_id = UUID(int=7)
    with database.connect() as connection:
        connection.execute(script("schema.sql", schema="100% other"))
        with connection.transaction():
            receipt = Outbox(schema="100% other").publish(connection, "a", {}, event_id=event_id)
        assert receipt.event_id == event_id
        assert connection.execute('SELECT event_id FROM "100% other".outbox').fetchall() == [(event_id,)]


def test_an_empty_batch_writes_nothing(database: Database) -> None:
    with database.connect(autocommit=False) as connection:
        assert Outbox().publish_many(connection, []) == ([], 0)
